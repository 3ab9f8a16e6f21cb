module github.com/libsemantic/libsemantic/bench/go_peer

go 1.22

require (
	github.com/libsemantic/libsemantic/go_example v0.0.0
	github.com/yalue/onnxruntime_go v1.27.0
)

replace github.com/libsemantic/libsemantic/go_example => ../../go_example
