// Router asks a backend for the label of each text, as a router would.
//
//	router MODEL_FOLDER TEXT...
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/assembly"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: router MODEL_FOLDER TEXT... (a sequence classifier)")
	}
	ctx, request := context.Background(), native.SequenceClassificationRequest{Texts: os.Args[2:]}
	registry := must(assembly.Assemble(ctx, assembly.Config{}))
	backend := must(registry.Get(native.BackendLibsemantic))
	model := must(backend.LoadModel(ctx, native.LoadRequest{Path: os.Args[1], Capability: request.Capability()}))
	answer := must(backend.Inference(ctx, model, request))
	for i, row := range answer.(*native.SequenceClassificationResponse).Rows {
		fmt.Printf("%s %.2f %s\n", row.Label, row.Score, request.Texts[i])
	}
	if err := errors.Join(backend.UnloadModel(ctx, model), registry.Close()); err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
