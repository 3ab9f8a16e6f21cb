module github.com/libsemantic/libsemantic/go_example

go 1.22
