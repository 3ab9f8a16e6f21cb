// Demo shows libsemantic at work on two models: it finds personal data in
// sentences and the sentences that are closest in meaning.
//
//	demo RAMPART_FOLDER MINILM_FOLDER
//
// It also says which backends it was composed of:
//
//	demo backends [--json]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

const hint = "`make models` puts both folders into build/models; `make demo` does everything"

var personal = []string{
	"My name is Sarah Connor, mail sarah.connor@example.com or call 303-555-0142.",
	"Send the parcel to Peter Miller, 12 Baker Street, Denver, CO 80203.",
	"Meet José Núñez at the café in Málaga, his number is 303-555-0187.",
	"The weather will be sunny tomorrow afternoon.",
}

var sentences = []string{
	"A man is eating a piece of bread.",
	"How do I reset my password?",
	"Stock prices fell sharply on Monday.",
	"Somebody is having a meal.",
	"I cannot log in to my account.",
	"The market lost three percent today.",
}

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 && os.Args[1] == "backends" {
		if err := showBackends(context.Background(), os.Stdout, os.Args[2:]); err != nil {
			log.Fatal("demo: ", err)
		}
		return
	}
	if len(os.Args) != 3 {
		log.Fatal("usage: demo RAMPART_FOLDER MINILM_FOLDER, or demo backends [--json]\n" + hint)
	}
	err := demo(context.Background(), os.Args[1], os.Args[2])
	if errors.Is(err, semantic.ErrNotFound) {
		log.Fatalf("demo: %v\n%s", err, hint)
	}
	if err != nil {
		log.Fatal("demo: ", err)
	}
}

func demo(ctx context.Context, rampart, minilm string) error {
	rt, err := semantic.Open(ctx, semantic.Options{})
	if err != nil {
		return err
	}
	defer rt.Close() // harmless after the Close below
	if err := showStats(rt, "Before any model is loaded"); err != nil {
		return err
	}

	fmt.Print("\n== Loading two models\n")
	finder, err := load(ctx, rt, rampart, semantic.TaskTokenClassification)
	if err != nil {
		return err
	}
	embedder, err := load(ctx, rt, minilm, semantic.TaskEmbedding)
	if err != nil {
		return err
	}
	if err := showEntities(ctx, finder); err != nil {
		return err
	}
	if err := showNeighbours(ctx, embedder); err != nil {
		return err
	}
	if err := showStats(rt, "After these calls"); err != nil {
		return err
	}
	if err := rt.Close(); err != nil {
		return err
	}
	return showStats(rt, "After Close")
}

func load(
	ctx context.Context, rt *semantic.Runtime, folder string, task semantic.Task,
) (*semantic.Model, error) {
	begin := time.Now()
	model, err := rt.Load(ctx, folder, semantic.LoadOptions{Task: task})
	if err != nil {
		return nil, err
	}
	info, err := model.Info()
	if err != nil {
		return nil, err
	}
	fmt.Printf("%-10s %s, %s on %s, %d tokens at most, ready in %.1f s\n", info.Name, info.Task,
		info.Source, info.Provider, info.MaxTokens, time.Since(begin).Seconds())
	return model, nil
}

func showEntities(ctx context.Context, model *semantic.Model) error {
	fmt.Printf("\n== Personal data\n    %-26s %-16s %-6s %s\n", "found", "label", "score", "bytes")
	found, err := model.ClassifyTokens(ctx, personal, semantic.RunOptions{})
	if err != nil {
		return err
	}
	for i, row := range found.Rows {
		fmt.Println(personal[i])
		for _, s := range row.Spans {
			fmt.Printf("    %-26s %-16s %-6.2f [%d:%d]\n",
				personal[i][s.Start:s.End], s.Label, s.Score, s.Start, s.End)
		}
		if len(row.Spans) == 0 {
			fmt.Println("    nothing found")
		}
	}
	return nil
}

func showNeighbours(ctx context.Context, model *semantic.Model) error {
	fmt.Print("\n== Nearest in meaning, with the cosine\n")
	vectors, err := model.Embed(ctx, sentences, semantic.RunOptions{Normalize: semantic.NormalizeOn})
	if err != nil {
		return err
	}
	for i, row := range vectors.Rows {
		nearest, cosine := -1, float32(-2)
		for j, other := range vectors.Rows {
			if c := dot(row.Vector, other.Vector); j != i && c > cosine {
				nearest, cosine = j, c
			}
		}
		fmt.Printf("%-38s %.2f  %s\n", sentences[i], cosine, sentences[nearest])
	}
	return nil
}

// dot is the cosine of vectors of unit length.
func dot(a, b []float32) (sum float32) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func showStats(rt *semantic.Runtime, title string) error {
	stats, err := rt.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("\n== %s: running %v, %d models ready, %d results held\n",
		title, stats.Running, stats.ModelsReady, stats.ResultsUnfreed)
	for _, c := range stats.Calls {
		fmt.Printf("%-10s %-16v %d texts: %d done, %d failed; %d tokens in %d runs\n",
			c.ModelName, c.Call, c.Accepted, c.Completed, c.Failed, c.Tokens, c.Batches)
	}
	for _, m := range stats.Memory {
		fmt.Printf("memory of %-20s %8.1f MB\n", m.Owner, float64(m.Bytes)/1e6)
	}
	return nil
}
