//go:build !cgo

package main

import "log"

func main() {
	log.Fatal("candle was built without cgo; build it with CGO_ENABLED=1 and a C compiler")
}
