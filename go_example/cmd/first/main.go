// First finds the entities in a sentence with a token classifier.
//
//	first MODEL_FOLDER
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: first MODEL_FOLDER (a token classifier, such as build/models/rampart)")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, folder string) error {
	rt, err := semantic.Open(ctx, semantic.Options{})
	if err != nil {
		return err
	}
	defer rt.Close() // unloads the model too
	model, err := rt.Load(ctx, folder, semantic.LoadOptions{})
	if err != nil {
		return err
	}
	text := "I am Sarah Connor, write to sarah@example.org"
	found, err := model.ClassifyTokens(ctx, []string{text}, semantic.RunOptions{})
	if err != nil {
		return err
	}
	for _, span := range found.Rows[0].Spans {
		fmt.Printf("%-20s %-12s %.2f  bytes %d to %d\n",
			text[span.Start:span.End], span.Label, span.Score, span.Start, span.End)
	}
	return nil
}
