//go:build cgo

package libsemantic_test

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// exact is how far two runs of the same numbers may lie apart.
const exact = 1e-6

// bound loads a model twice: through the adapter and through the binding.
func bound(
	t *testing.T, adapter native.BackendAdapter, name string, capability native.Capability,
) (native.ModelHandle, *semantic.Model) {
	t.Helper()
	handle := load(t, adapter, native.LoadRequest{Path: modelPath(t, name), Capability: capability})
	model, err := library(t).Load(context.Background(), modelPath(t, name), semantic.LoadOptions{Name: "binding"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = model.Close() })
	return handle, model
}

func sameUsage(t *testing.T, got native.Usage, want semantic.Row, tokens int) {
	t.Helper()
	reference := native.Usage{TokenCount: tokens, ScoredTokenCount: tokens, WindowCount: 1}
	if got != reference || want.TokenCount != tokens {
		t.Errorf("usage %+v, want %+v, the binding has %+v", got, reference, want)
	}
}

func TestEmbeddingParity(t *testing.T) {
	for _, name := range []string{"bert-embed-mean", "bert-embed-cls"} {
		t.Run(name, func(t *testing.T) {
			adapter, reference := newAdapter(t), readGolden[[]float32](t, name)
			handle, model := bound(t, adapter, name, native.CapabilityEmbedding)
			got := infer[*native.EmbeddingResponse](t, adapter, handle,
				native.EmbeddingRequest{Texts: reference.texts()})
			want, err := model.Embed(context.Background(), reference.texts(), semantic.RunOptions{})
			if err != nil || got.Dimension != want.Dimension || len(got.Rows) != len(reference.Cases) {
				t.Fatalf("dimension %d, %d rows; %v", got.Dimension, len(got.Rows), err)
			}
			for i, row := range got.Rows {
				sameUsage(t, row.Usage, want.Rows[i].Row, len(reference.Cases[i].InputIDs))
				near(t, "the reference", row.Vector, reference.Cases[i].Embedding, tolerance)
				near(t, "the binding", row.Vector, want.Rows[i].Vector, exact)
			}
		})
	}
}

func TestSequenceClassificationParity(t *testing.T) {
	adapter, reference := newAdapter(t), readGolden[[]float32](t, "bert-seq")
	handle, model := bound(t, adapter, "bert-seq", native.CapabilitySequenceClassification)
	got := infer[*native.SequenceClassificationResponse](t, adapter, handle,
		native.SequenceClassificationRequest{Texts: reference.texts()})
	want, err := model.Classify(context.Background(), reference.texts(), semantic.RunOptions{})
	if err != nil || len(got.Rows) != len(reference.Cases) || got.MultiLabel ||
		!slices.Equal(got.Labels, want.Labels) || len(got.Labels) != 7 {
		t.Fatalf("labels %q, %d rows; %v", got.Labels, len(got.Rows), err)
	}
	for i, row := range got.Rows {
		c := reference.Cases[i]
		sameUsage(t, row.Usage, want.Rows[i].Row, len(c.InputIDs))
		near(t, "reference probabilities", row.Probabilities, c.Probs, tolerance)
		near(t, "reference logits", row.Logits, c.Logits, tolerance)
		near(t, "binding probabilities", row.Probabilities, want.Rows[i].Probabilities, exact)
		near(t, "binding logits", row.Logits, want.Rows[i].Logits, 10*exact)
		winner := slices.Index(c.Probs, slices.Max(c.Probs))
		if row.Index != winner || row.Label != got.Labels[winner] || row.Score != row.Probabilities[winner] ||
			!slices.Equal(row.Selected, want.Rows[i].Selected) {
			t.Errorf("row %d: got %+v, want %q", i, row, got.Labels[winner])
		}
	}
}

func TestPairsAreClassifiedAsByTheBinding(t *testing.T) {
	adapter := newAdapter(t)
	handle, model := bound(t, adapter, "bert-seq", native.CapabilitySequenceClassification)
	left, right := []string{"comía feliz", "a"}, []string{"机器学习", "b"}
	got := infer[*native.SequenceClassificationResponse](t, adapter, handle,
		native.SequenceClassificationRequest{Texts: left, PairTexts: right})
	want, err := model.ClassifyPairs(context.Background(), left, right, semantic.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range got.Rows {
		near(t, "probabilities", row.Probabilities, want.Rows[i].Probabilities, exact)
		if row.Label != want.Rows[i].Label || row.TokenCount != want.Rows[i].TokenCount {
			t.Errorf("row %d: got %+v, want %+v", i, row, want.Rows[i])
		}
	}
}

func TestTokenClassificationParity(t *testing.T) {
	adapter, reference := newAdapter(t), readGolden[[][]float32](t, "bert-token")
	handle, model := bound(t, adapter, "bert-token", native.CapabilityTokenClassification)
	got := infer[*native.TokenClassificationResponse](t, adapter, handle,
		native.TokenClassificationRequest{Texts: reference.texts()})
	want, err := model.ClassifyTokens(context.Background(), reference.texts(), semantic.RunOptions{})
	if err != nil || !slices.Equal(got.Labels, want.Labels) || len(got.Rows) != len(reference.Cases) {
		t.Fatalf("labels %q, %d rows; %v", got.Labels, len(got.Rows), err)
	}
	expected := entities(t)
	for i, row := range got.Rows {
		sameUsage(t, row.Usage, want.Rows[i].Row, len(reference.Cases[i].InputIDs))
		sameEntities(t, row.Entities, want.Rows[i].Spans)
		if len(row.Entities) != len(expected[i]) {
			t.Fatalf("row %d: %d entities, the reference has %d", i, len(row.Entities), len(expected[i]))
		}
		for j, e := range row.Entities {
			r := expected[i][j]
			if e.Label != r.Label || got.Labels[e.Index] != e.Label || e.Start != r.Start || e.End != r.End {
				t.Errorf("row %d entity %d: got %+v, the reference has %+v", i, j, e, r)
			}
			near(t, "score", []float32{e.Score}, []float32{r.Score}, tolerance)
		}
	}

	all := infer[*native.TokenClassificationResponse](t, adapter, handle, native.TokenClassificationRequest{
		Texts: reference.texts(), Threshold: 0.9})
	for i, row := range all.Rows {
		sure := slices.DeleteFunc(slices.Clone(got.Rows[i].Entities), func(e native.Entity) bool {
			return e.Score < 0.9
		})
		if len(row.Entities) != len(sure) {
			t.Errorf("row %d: %d entities from 0.9 on, want %d", i, len(row.Entities), len(sure))
		}
	}

	contexts, answers := []string{"comía feliz cardillo"}, []string{"El murciélago hindú"}
	given := infer[*native.TokenClassificationResponse](t, adapter, handle,
		native.TokenClassificationRequest{Texts: answers, Contexts: contexts})
	pairs, err := model.ClassifyTokenPairs(context.Background(), contexts, answers, semantic.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sameEntities(t, given.Rows[0].Entities, pairs.Rows[0].Spans)
}

func sameEntities(t *testing.T, got []native.Entity, want []semantic.Span) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d entities, the binding has %d", len(got), len(want))
	}
	for i, s := range want {
		e := got[i]
		near(t, "binding score", []float32{e.Score}, []float32{s.Score}, exact)
		if e.Start != s.Start || e.End != s.End || e.Label != s.Label || e.Index != s.LabelIndex {
			t.Errorf("entity %d: got %+v, the binding has %+v", i, e, s)
		}
	}
}

func TestRerankingParity(t *testing.T) {
	adapter, reference := newAdapter(t), readGolden[[]float32](t, "bert-reranker")
	handle, model := bound(t, adapter, "bert-reranker", native.CapabilityReranking)
	for i, c := range reference.Cases {
		got := infer[*native.RerankingResponse](t, adapter, handle,
			native.RerankingRequest{Query: c.Text, Documents: []string{c.TextPair}})
		want, err := model.ClassifyPairs(
			context.Background(), []string{c.Text}, []string{c.TextPair}, semantic.RunOptions{})
		if err != nil || len(got.Rows) != 1 || !slices.Equal(got.Ranking, []int{0}) {
			t.Fatalf("case %d: %+v, %v", i, got, err)
		}
		row := got.Rows[0]
		sigmoid := float32(1 / (1 + math.Exp(-float64(c.Logits[0]))))
		sameUsage(t, row.Usage, want.Rows[0].Row, len(c.InputIDs))
		near(t, "reference logit", []float32{row.Logit}, c.Logits, tolerance)
		near(t, "reference score", []float32{row.Score}, []float32{sigmoid}, tolerance)
		near(t, "binding", []float32{row.Score}, []float32{want.Rows[0].Score}, exact)
	}

	query, documents := reference.Cases[0].Text, make([]string, len(reference.Cases))
	for i, c := range reference.Cases {
		documents[i] = c.TextPair
	}
	got := infer[*native.RerankingResponse](t, adapter, handle,
		native.RerankingRequest{Query: query, Documents: documents})
	want, err := model.ClassifyPairs(
		context.Background(), repeat(query, len(documents)), documents, semantic.RunOptions{})
	if err != nil || len(got.Rows) != len(documents) {
		t.Fatalf("%d rows, %v", len(got.Rows), err)
	}
	for i, row := range got.Rows {
		near(t, "score", []float32{row.Score}, []float32{want.Rows[i].Score}, exact)
	}
	order := slices.Clone(got.Ranking)
	slices.Sort(order)
	if len(slices.Compact(order)) != len(documents) {
		t.Fatalf("the ranking of %d documents is %v", len(documents), got.Ranking)
	}
	for k := 1; k < len(got.Ranking); k++ {
		if got.Rows[got.Ranking[k]].Logit > got.Rows[got.Ranking[k-1]].Logit {
			t.Errorf("the ranking %v is not best first", got.Ranking)
		}
	}
}

func TestTruncationIsTold(t *testing.T) {
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	got := infer[*native.SequenceClassificationResponse](t, adapter, handle,
		native.SequenceClassificationRequest{Texts: []string{"math", strings.Repeat("math ", 300)}})
	limit := adapter.Info()[0].MaxSequenceLength
	short, long := got.Usage()[0], got.Usage()[1]
	if short.Truncated || short.TokenCount != 3 || !long.Truncated || long.TokenCount != 302 ||
		long.ScoredTokenCount != limit || limit != 64 {
		t.Errorf("usage %+v and %+v with a limit of %d", short, long, limit)
	}
}

// An entity of expected_entities.json.
type entity struct {
	Label      string
	Start, End int
	Score      float32
}

// entities are those that follow from the reference of bert-token.
func entities(t *testing.T) [][]entity {
	t.Helper()
	var out map[string][][]entity
	readJSON(t, filepath.Join(filepath.Dir(modelsRoot(t)), "expected_entities.json"), &out)
	return out["expected.json"]
}
