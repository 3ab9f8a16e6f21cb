//go:build cgo

package semantic

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	modelsVariable = "SEMANTIC_TEST_MODELS"
	tolerance      = 1e-4
)

// golden is the expected.json of a test model. Values are one row per text, for
// token classifiers one row per token.
type golden[Values any] struct {
	MaxLength int `json:"max_length"`
	Cases     []struct {
		Text      string   `json:"text"`
		TextPair  string   `json:"text_pair"`
		InputIDs  []int    `json:"input_ids"`
		Logits    Values   `json:"logits"`
		Probs     Values   `json:"probs"`
		Embedding Values   `json:"embedding"`
		Offsets   [][2]int `json:"offsets_chars"`
	} `json:"cases"`
}

func (g golden[Values]) texts() []string {
	out := make([]string, len(g.Cases))
	for i, c := range g.Cases {
		out[i] = c.Text
	}
	return out
}

func modelPath(t *testing.T, name string) string {
	t.Helper()
	root := os.Getenv(modelsVariable)
	if root == "" {
		t.Fatalf("%s is not set; set it to the folder tests/golden/models of the repository",
			modelsVariable)
	}
	path := filepath.Join(root, name)
	if _, err := os.Stat(filepath.Join(path, "config.json")); err != nil {
		t.Fatalf("%s does not hold the model %s: %v", modelsVariable, name, err)
	}
	return path
}

func readGolden[Values any](t *testing.T, name string) golden[Values] {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(modelPath(t, name), "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out golden[Values]
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Cases) == 0 || out.MaxLength == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return out
}

// open starts the runtime for one test and closes it after the test.
func open(t *testing.T, options Options) *Runtime {
	t.Helper()
	rt, err := Open(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return rt
}

func load(t *testing.T, rt *Runtime, name string, options LoadOptions) *Model {
	t.Helper()
	model, err := rt.Load(context.Background(), modelPath(t, name), options)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tolerance) {
			t.Errorf("%s[%d]: got %v, want %v", what, i, got[i], want[i])
		}
	}
}

func answeredRow(t *testing.T, what string, row Row, tokens int) {
	t.Helper()
	want := Row{TokenCount: tokens, ScoredTokenCount: tokens, WindowCount: 1}
	if row != want {
		t.Errorf("%s: got %+v, want %+v", what, row, want)
	}
}

func argmax(values []float32) int {
	return slices.Index(values, slices.Max(values))
}

func TestClassifyEqualsTheReference(t *testing.T) {
	want := readGolden[[]float32](t, "bert-seq")
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	got, err := model.Classify(context.Background(), want.texts(), RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := []string{"biology", "business", "chemistry", "computer science", "economics",
		"math", "other"}
	if !slices.Equal(got.Labels, labels) || got.MultiLabel || got.Generation != 1 {
		t.Fatalf("got labels %q, multi-label %v, generation %d",
			got.Labels, got.MultiLabel, got.Generation)
	}
	if len(got.Rows) != len(want.Cases) {
		t.Fatalf("%d rows for %d texts", len(got.Rows), len(want.Cases))
	}
	for i, row := range got.Rows {
		c := want.Cases[i]
		what := fmt.Sprintf("row %d", i)
		answeredRow(t, what, row.Row, len(c.InputIDs))
		near(t, what+" probabilities", row.Probabilities, c.Probs)
		near(t, what+" logits", row.Logits, c.Logits)
		near(t, what+" class max", row.ClassMax, c.Probs)
		near(t, what+" score", []float32{row.Score}, []float32{slices.Max(c.Probs)})
		winner := argmax(c.Probs)
		if row.LabelIndex != winner || row.Label != labels[winner] {
			t.Errorf("%s: got %d %q, want %d %q", what, row.LabelIndex, row.Label, winner, labels[winner])
		}
		for label, p := range c.Probs {
			if math.Abs(float64(p)-0.5) > tolerance && row.Selected[label] != (p >= 0.5) {
				t.Errorf("%s: label %d with %v: selected is %v", what, label, p, row.Selected[label])
			}
		}
		if !slices.Equal(row.ClassWindow, make([]int32, len(labels))) {
			t.Errorf("%s: windows %v", what, row.ClassWindow)
		}
	}
}

func TestClassifyPairsEqualsTheReference(t *testing.T) {
	want := readGolden[[]float32](t, "bert-reranker")
	model := load(t, open(t, Options{}), "bert-reranker", LoadOptions{})
	right := make([]string, len(want.Cases))
	for i, c := range want.Cases {
		right[i] = c.TextPair
	}
	got, err := model.ClassifyPairs(context.Background(), want.texts(), right, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != len(want.Cases) {
		t.Fatalf("%d rows for %d pairs", len(got.Rows), len(want.Cases))
	}
	for i, row := range got.Rows {
		c := want.Cases[i]
		what := fmt.Sprintf("row %d", i)
		sigmoid := float32(1 / (1 + math.Exp(-float64(c.Logits[0]))))
		answeredRow(t, what, row.Row, len(c.InputIDs))
		near(t, what+" logits", row.Logits, c.Logits)
		near(t, what+" probabilities", row.Probabilities, []float32{sigmoid})
		near(t, what+" score", []float32{row.Score}, []float32{sigmoid})
		if row.LabelIndex != 0 || row.Label != "LABEL_0" {
			t.Errorf("%s: got %d %q", what, row.LabelIndex, row.Label)
		}
	}
	_, err = model.ClassifyPairs(context.Background(), right, right[1:], RunOptions{})
	wantStatus(t, err, ErrInvalidArgument)
}

func TestEmbedEqualsTheReference(t *testing.T) {
	for _, name := range []string{"bert-embed-mean", "bert-embed-cls"} {
		t.Run(name, func(t *testing.T) {
			want := readGolden[[]float32](t, name)
			model := load(t, open(t, Options{}), name, LoadOptions{})
			got, err := model.Embed(context.Background(), want.texts(), RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.Dimension != 64 || len(got.Rows) != len(want.Cases) {
				t.Fatalf("dimension %d, %d rows", got.Dimension, len(got.Rows))
			}
			for i, row := range got.Rows {
				what := fmt.Sprintf("row %d", i)
				answeredRow(t, what, row.Row, len(want.Cases[i].InputIDs))
				near(t, what, row.Vector, want.Cases[i].Embedding)
			}
		})
	}
}

// The spans follow by hand from the labels of the single tokens in expected.json.
func TestClassifyTokensFindsEntities(t *testing.T) {
	type entity struct {
		label, text string
		start       int
	}
	expected := map[string][]entity{
		"What is the derivative of x squared?": {
			{"EMAIL", "What is", 0},     // I- without a B- opens an entity
			{"PERSON", "the", 8},        //
			{"EMAIL", "derivative", 12}, //
			{"EMAIL", "x", 26},          // `of` is O
			{"PERSON", "squared?", 28},  // B- and a touching I-
		},
		"El murciélago hindú comía feliz cardillo": {
			{"EMAIL", "El murciélago", 0},
			{"PERSON", "hindú", 15},
			{"EMAIL", "comía", 22},
			{"EMAIL", "feliz", 29}, // B- after a blank opens another one
			{"PERSON", "cardillo", 35},
		},
		"机器学习模型可以在图形处理器上运行。": {
			{"PERSON", "机器学习模型可以在", 0},
			{"EMAIL", "图", 27},
			{"PERSON", "形处理器上运行。", 30}, // a touching B- goes on
		},
	}
	want := readGolden[[][]float32](t, "bert-token")
	model := load(t, open(t, Options{}), "bert-token", LoadOptions{})
	got, err := model.ClassifyTokens(context.Background(), want.texts(), RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if types := []string{"EMAIL", "PERSON", "LOCATION"}; !slices.Equal(got.Labels, types) {
		t.Fatalf("got types %q, want %q", got.Labels, types)
	}
	compared := 0
	for i, row := range got.Rows {
		c := want.Cases[i]
		answeredRow(t, fmt.Sprintf("row %d", i), row.Row, len(c.InputIDs))
		entities, ok := expected[c.Text]
		if !ok {
			continue
		}
		compared++
		if len(row.Spans) != len(entities) {
			t.Fatalf("row %d: got %+v, want %+v", i, row.Spans, entities)
		}
		for j, span := range row.Spans {
			e := entities[j]
			if span.Label != e.label || got.Labels[span.LabelIndex] != e.label ||
				span.Start != e.start || c.Text[span.Start:span.End] != e.text {
				t.Errorf("row %d: got %+v %q, want %+v", i, span, c.Text[span.Start:span.End], e)
			}
			near(t, fmt.Sprintf("row %d span %d score", i, j), []float32{span.Score},
				[]float32{typeScore(c.Text, c.Offsets, c.Probs, span)})
			if span.Probabilities != nil {
				t.Errorf("row %d span %d has probabilities", i, j)
			}
		}
	}
	if compared != len(expected) {
		t.Fatalf("compared %d texts of %d", compared, len(expected))
	}
}

// typeScore is the mean probability of the span's type over the tokens in it.
func typeScore(text string, offsets [][2]int, probs [][]float32, span Span) float32 {
	columns := map[string][2]int{"EMAIL": {1, 2}, "PERSON": {3, 4}, "LOCATION": {5, 6}}[span.Label]
	var sum, tokens float32
	for i, o := range offsets {
		start, end := byteOffset(text, o[0]), byteOffset(text, o[1])
		if start < end && span.Start <= start && end <= span.End {
			sum += probs[i][columns[0]] + probs[i][columns[1]]
			tokens++
		}
	}
	return sum / tokens
}

// byteOffset turns an offset in characters into one in bytes.
func byteOffset(text string, characters int) int {
	return len(string([]rune(text)[:characters]))
}

func TestClassifyTokensListsTokens(t *testing.T) {
	want := readGolden[[][]float32](t, "bert-token")
	model := load(t, open(t, Options{}), "bert-token", LoadOptions{})
	got, err := model.ClassifyTokens(
		context.Background(), want.texts(), RunOptions{Output: OutputTokens})
	if err != nil {
		t.Fatal(err)
	}
	labels := []string{"O", "B-EMAIL", "I-EMAIL", "B-PERSON", "I-PERSON", "B-LOCATION", "I-LOCATION"}
	if !slices.Equal(got.Labels, labels) {
		t.Fatalf("got labels %q", got.Labels)
	}
	for i, row := range got.Rows {
		c := want.Cases[i]
		if len(row.Spans) != len(c.Probs)-2 { // without [CLS] and [SEP]
			t.Fatalf("row %d: %d tokens, want %d", i, len(row.Spans), len(c.Probs)-2)
		}
		for j, span := range row.Spans {
			offsets, probs := c.Offsets[j+1], c.Probs[j+1]
			what := fmt.Sprintf("row %d token %d", i, j)
			if span.Start != byteOffset(c.Text, offsets[0]) || span.End != byteOffset(c.Text, offsets[1]) {
				t.Errorf("%s: bytes %d to %d, want characters %v", what, span.Start, span.End, offsets)
			}
			near(t, what, span.Probabilities, probs)
			winner := argmax(probs)
			if span.LabelIndex != winner || span.Label != labels[winner] {
				t.Errorf("%s: got %d %q, want %q", what, span.LabelIndex, span.Label, labels[winner])
			}
			near(t, what+" score", []float32{span.Score}, []float32{probs[winner]})
		}
	}
}

func TestClassifyTokenPairsCountsInTheAnswer(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-token", LoadOptions{})
	answer := "El murciélago hindú"
	got, err := model.ClassifyTokenPairs(context.Background(),
		[]string{"comía feliz cardillo", "机器学习"}, []string{answer, answer},
		RunOptions{Output: OutputTokens})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range got.Rows {
		var words []string
		for _, span := range row.Spans {
			words = append(words, answer[span.Start:span.End])
		}
		if want := strings.Fields(answer); !slices.Equal(words, want) {
			t.Errorf("row %d: got %q, want %q", i, words, want)
		}
		if row.Err != nil || row.TokenCount < 3+len(words) || row.Truncated {
			t.Errorf("row %d: %+v", i, row.Row)
		}
	}
	if slices.Equal(got.Rows[0].Spans[0].Probabilities, got.Rows[1].Spans[0].Probabilities) {
		t.Error("the context changes nothing")
	}
	_, err = model.ClassifyTokenPairs(context.Background(), []string{"a", "b"}, nil, RunOptions{})
	wantStatus(t, err, ErrInvalidArgument)
}

func TestCountTokens(t *testing.T) {
	want := readGolden[[][]float32](t, "bert-token")
	model := load(t, open(t, Options{}), "bert-token", LoadOptions{})
	long := strings.Repeat("math é ", 200)
	got, err := model.CountTokens(
		context.Background(), append(want.texts(), long), RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range want.Cases {
		answeredRow(t, fmt.Sprintf("row %d", i), got.Rows[i].Row, len(c.InputIDs))
		if windows := got.Rows[i].Windows; len(windows) != 1 || windows[0].Tokens != len(c.InputIDs) {
			t.Errorf("row %d: windows %+v", i, windows)
		}
	}
	row := got.Rows[len(want.Cases)]
	if row.Err != nil || row.Truncated || row.TokenCount != row.ScoredTokenCount ||
		row.TokenCount < 402 || row.WindowCount != len(row.Windows) || row.WindowCount < 7 {
		t.Fatalf("long text: %+v", row.Row)
	}
	covered := 0
	for _, w := range row.Windows {
		if w.Tokens > want.MaxLength || w.Start > covered || w.End <= covered {
			t.Errorf("window %+v after byte %d", w, covered)
		}
		if !utf8.ValidString(long[w.Start:w.End]) {
			t.Errorf("window %+v cuts a character", w)
		}
		covered = w.End
	}
	if left := strings.TrimSpace(long[covered:]); left != "" {
		t.Errorf("no window covers %q", left)
	}
	for _, maxTokens := range []int{0, 16} {
		cut, err := model.CountTokens(context.Background(), []string{long},
			RunOptions{LongText: LongTextCut, MaxTokens: maxTokens})
		if err != nil {
			t.Fatal(err)
		}
		if r := cut.Rows[0]; !r.Truncated || r.ScoredTokenCount != cmp.Or(maxTokens, want.MaxLength) ||
			r.TokenCount != row.TokenCount || r.WindowCount != 1 {
			t.Errorf("cut at %d: %+v", maxTokens, r.Row)
		}
	}
	_, err = model.CountTokens(
		context.Background(), []string{long}, RunOptions{LongText: LongTextRefuse})
	wantStatus(t, err, ErrTooLong)
}

func TestInfoDescribesTheFolder(t *testing.T) {
	want := readGolden[[]float32](t, "bert-embed-mean")
	path := modelPath(t, "bert-embed-mean")
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := os.Stat(filepath.Join(path, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	model := load(t, open(t, Options{}), "bert-embed-mean", LoadOptions{Name: "vectors"})
	info, err := model.Info()
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "vectors" || info.Path != resolved || info.Family != "bert" ||
		info.Architecture != "BertModel" || info.Source != "safetensors" ||
		info.Task != TaskEmbedding || info.Dimension != 64 || info.Generation != 1 ||
		info.MaxTokens != want.MaxLength || info.PositionLimit != 128 ||
		info.MaxTextBytes != 1<<20 || len(info.Labels) != 0 || info.MultiLabel {
		t.Errorf("got %+v", info)
	}
	if !slices.Contains(info.Files, File{Name: "model.safetensors", Size: weights.Size()}) {
		t.Errorf("files %+v", info.Files)
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(info.JSON), &object); err != nil || object["name"] != "vectors" {
		t.Errorf("JSON %q: %v", info.JSON, err)
	}
}
