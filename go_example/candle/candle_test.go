//go:build cgo

package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/internal/program"
)

const text = "My email is jane.roe@example.org and I live in Zürich"

func folder(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(program.Models(t), name)
}

type golden struct {
	Text      string
	Other     string `json:"text_pair"`
	Logits    []float64
	Embedding []float64
	IDs       []int `json:"input_ids"`
}

// cases reads the answers of transformers; their texts are all shorter than the models.
func cases(t *testing.T, name string) []golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder(t, name), "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []golden }
	if err := json.Unmarshal(data, &file); err != nil || len(file.Cases) < 10 {
		t.Fatalf("%d cases, %v", len(file.Cases), err)
	}
	return file.Cases
}

func softmax(logits []float64) (shares []float64, winner int) {
	sum := 0.0
	for i, logit := range logits {
		shares = append(shares, math.Exp(logit))
		sum += shares[i]
		if logit > logits[winner] {
			winner = i
		}
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares, winner
}

func near(t *testing.T, what string, got float32, want float64) {
	t.Helper()
	if math.Abs(float64(got)-want) > 1e-4 {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func nearAll(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d numbers, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		near(t, what, got[i], want[i])
	}
}

// Every function that candle-binding declares stands in the declarations and is called.
func TestEveryDeclaredFunctionIsCalled(t *testing.T) {
	header, err := os.ReadFile("declarations.h")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?s)extern [^;(]*?(\w+)\(`).FindAllStringSubmatch(string(header), -1)
	if len(declared) != 119 {
		t.Fatalf("%d functions are declared, want 119", len(declared))
	}
	var source strings.Builder
	for _, name := range []string{"candle.go", "vectors.go", "checks.go"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(data)
	}
	for _, match := range declared {
		if !strings.Contains(source.String(), "C."+match[1]+"(") {
			t.Errorf("%s is declared and not called", match[1])
		}
	}
}

// The model of each init function, its number of classes, and the functions that ask it.
var places = []struct {
	init, folder string
	classes      int
	readers      []string
}{
	{"init_classifier", "bert-seq", 7, []string{"classify_text", "classify_text_with_probabilities"}},
	{"init_generic_classifier", "bert-seq", 7, []string{"classify_text", "classify_text_with_probabilities"}},
	{"init_pii_classifier", "bert-seq", 7, []string{"classify_pii_text"}},
	{"init_jailbreak_classifier", "bert-seq", 7, []string{"classify_jailbreak_text", "classify_jailbreak_text_with_probabilities"}},
	{"init_candle_bert_classifier", "bert-seq", 7, []string{"classify_candle_bert_text", "classify_bert_text"}},
	{"init_modernbert_classifier", "modernbert-seq-cls", 0, []string{"classify_modernbert_text", "classify_modernbert_text_with_probabilities"}},
	{"init_modernbert_pii_classifier", "modernbert-seq-mean", 0, []string{"classify_modernbert_pii_text"}},
	{"init_modernbert_jailbreak_classifier", "modernbert-seq-mean", 0, []string{"classify_modernbert_jailbreak_text", "classify_modernbert_jailbreak_text_with_probabilities"}},
	{"init_deberta_jailbreak_classifier", "deberta-v3-seq", 0, []string{"classify_deberta_jailbreak_text"}},
	{"init_fact_check_classifier", "modernbert-seq-mean", 0, []string{"classify_fact_check_text"}},
	{"init_feedback_detector", "modernbert-seq-cls", 0, []string{"classify_feedback_text"}},
	{"init_mmbert_classifier", "modernbert-seq-cls", 0, nil},
	{"init_mmbert_classifier_auto", "modernbert-seq-cls", 0, nil},
	{"init_mmbert_32k_intent_classifier", "modernbert-seq-cls", 0, []string{"classify_mmbert_32k_intent"}},
	{"init_mmbert_32k_factcheck_classifier", "modernbert-seq-mean", 0, []string{"classify_mmbert_32k_factcheck"}},
	{"init_mmbert_32k_jailbreak_classifier", "modernbert-seq-mean", 0, []string{"classify_mmbert_32k_jailbreak", "classify_mmbert_32k_jailbreak_with_probabilities"}},
	{"init_mmbert_32k_feedback_classifier", "modernbert-seq-cls", 0, []string{"classify_mmbert_32k_feedback"}},
	{"init_mmbert_32k_modality_classifier", "modernbert-seq-cls", 0, []string{"classify_mmbert_32k_modality"}},
}

func TestClasses(t *testing.T) {
	asked := map[string]bool{}
	for _, place := range places {
		for _, reader := range place.readers {
			if got := classify(reader, text); !asked[reader] && got.index != -1 {
				t.Errorf("%s before %s: class %d", reader, place.init, got.index)
			}
		}
		if !load(place.init, folder(t, place.folder), place.classes) {
			t.Errorf("%s failed", place.init)
			continue
		}
		if load(place.init, "/nowhere", place.classes) {
			t.Errorf("%s takes a second path", place.init)
		}
		if !load(place.init, folder(t, place.folder), place.classes) {
			t.Errorf("%s refuses its own path", place.init)
		}
		for _, reader := range place.readers {
			asked[reader] = true
			for _, want := range cases(t, place.folder) {
				shares, winner := softmax(want.Logits)
				got := classify(reader, want.Text)
				if got.index != winner {
					t.Errorf("%s: class %d, want %d", reader, got.index, winner)
				}
				near(t, reader, got.confidence, shares[winner])
				if strings.HasSuffix(reader, "_probabilities") {
					nearAll(t, reader, got.probabilities, shares)
				}
			}
		}
	}
	if want := len(classifiers) + len(classifiersWithProbabilities); len(asked) != want {
		t.Errorf("%d functions were asked, want %d", len(asked), want)
	}
}

func TestEntities(t *testing.T) {
	config := filepath.Join(folder(t, "modernbert-token"), "config.json")
	for _, place := range []struct {
		init, folder, labels string
		readers              []string
	}{
		{"init_modernbert_pii_token_classifier", "modernbert-token", config, []string{"classify_modernbert_pii_tokens", "classify_candle_bert_tokens"}},
		{"init_bert_token_classifier", "bert-token", "{}", []string{"classify_bert_pii_tokens", "classify_candle_bert_tokens"}},
		{"init_candle_bert_token_classifier", "bert-token", "{}", []string{"classify_candle_bert_tokens", "classify_candle_bert_tokens_with_labels"}},
		{"init_mmbert_32k_pii_classifier", "modernbert-token", "", []string{"classify_mmbert_32k_pii_tokens"}},
		{"init_mmbert_token_classifier", "modernbert-token", "", nil},
	} {
		if !load(place.init, folder(t, place.folder), 7) {
			t.Fatalf("%s failed", place.init)
		}
		for _, reader := range place.readers {
			got, err := tag(reader, text, place.labels)
			if err != nil || len(got) == 0 {
				t.Fatalf("%s: %v, %v", reader, got, err)
			}
			for _, e := range got {
				if text[e.start:e.end] != e.text || e.confidence <= 0 || e.confidence > 1 {
					t.Errorf("%s: %+v is %q", reader, e, text[e.start:e.end])
				}
			}
			if place.folder == "bert-token" {
				if first := got[0]; first.kind != "PERSON" || first.text != "My e" {
					t.Errorf("%s: the first is %+v", reader, first)
				}
				near(t, reader, got[0].confidence, 0.90895)
			}
			// Go sees no more than 1,000 of some; what is more would end the program.
			if many, err := tag(reader, strings.Repeat(text+" ", 400), place.labels); err != nil ||
				taggersOfBert[reader] != nil && reader != "classify_bert_pii_tokens" && len(many) != 1000 {
				t.Errorf("%s: %d entities, %v", reader, len(many), err)
			}
		}
	}
	if _, err := tag("classify_modernbert_pii_tokens", text, "/nowhere"); err == nil {
		t.Error("a configuration that is not there is no error")
	}
}

func TestSimilarity(t *testing.T) {
	if similarityLoaded() || similarity("a", "b") != -1 {
		t.Error("there is an answer without a model")
	}
	if !load("init_similarity_model", folder(t, "bert-embed-mean"), 0) || !similarityLoaded() {
		t.Fatal("init_similarity_model failed")
	}
	all := cases(t, "bert-embed-mean")
	var texts []string
	for _, want := range all {
		texts = append(texts, want.Text)
		got, err := textEmbedding(want.Text, 0)
		if err != nil {
			t.Fatal(err)
		}
		nearAll(t, "the vector", got.vector, want.Embedding)
		ids, tokens, err := tokenize(want.Text)
		if err != nil || !slices.Equal(ids, want.IDs) || len(tokens) != len(ids) {
			t.Errorf("%q has tokens %v %q, %v, want %v", want.Text, ids, tokens, err, want.IDs)
		}
	}
	dot := 0.0
	for i, value := range all[0].Embedding {
		dot += value * all[1].Embedding[i]
	}
	near(t, "the similarity", similarity(texts[0], texts[1]), dot)
	if index, score := mostSimilar(texts[3], texts); index != 3 || score < 0.9999 {
		t.Errorf("the most similar of all is number %d with %v", index, score)
	}
	if index, score := mostSimilar("a", nil); index != -1 || score != -1 {
		t.Errorf("the most similar of none is number %d with %v", index, score)
	}
}

func TestEmbeddings(t *testing.T) {
	qwen3, gemma, mmbert := folder(t, "qwen3-embed-last"), folder(t, "gemma3-embed-mean"), folder(t, "mmbert-embed-mean")
	if _, err := modelsInfo(); err == nil {
		t.Error("models are told of before there are any")
	}
	if loadEmbeddings("", "") {
		t.Error("no path is no error")
	}
	if !loadMmBert(mmbert) || !loadEmbeddings(qwen3, "") || !loadEmbeddings("", gemma) ||
		!loadEmbeddingsWithMmBert(qwen3, gemma, mmbert) || !loadBatched(qwen3, 8, 2) {
		t.Fatal("the inits failed, in this order")
	}
	if loaded, err := modelsInfo(); err != nil || len(loaded) < 2 || loaded[0] != "qwen3" || loaded[1] != "gemma" {
		t.Errorf("loaded are %q, %v", loaded, err)
	}
	for number, model := range []string{"qwen3", "gemma", "mmbert"} {
		name := map[string]string{"qwen3": qwen3, "gemma": gemma, "mmbert": mmbert}[model]
		for _, want := range cases(t, filepath.Base(name)) {
			for _, ask := range []func() (embedding, error){
				func() (embedding, error) { return embed(want.Text, model, 0, 0) },
				func() (embedding, error) { return embedWithModel(want.Text, model, 0) },
			} {
				got, err := ask()
				if err != nil || got.model != number || got.words != len(strings.Fields(want.Text)) {
					t.Fatalf("%s: model %d, %d words, %v", model, got.model, got.words, err)
				}
				nearAll(t, model, got.vector, want.Embedding)
			}
		}
	}
	want := cases(t, "qwen3-embed-last")[0]
	for _, ask := range []func() (embedding, error){
		func() (embedding, error) { return embedSmart(want.Text, 0.9, 0.1) },
		func() (embedding, error) { return embedWithDim(want.Text, 0.9, 0.1, 0) },
		func() (embedding, error) { return embedBatched(want.Text) },
	} {
		got, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		nearAll(t, "the vector", got.vector, want.Embedding)
	}
	if got, err := embeddingSimilarity(text, text, "gemma"); err != nil || got < 0.9999 {
		t.Errorf("a text is %v like itself, %v", got, err)
	}
	if _, err := embeddingSimilarity(text, text, "bert"); err == nil {
		t.Error("an unknown model is no error")
	}
	got, by, err := topK("math", []string{"law", "math", "law", "math"}, 3, "qwen3")
	if err != nil || by != 0 || !slices.Equal(got, []int{1, 3, 0}) {
		t.Errorf("the best are %v by %d, %v", got, by, err)
	}
}

func TestHallucinations(t *testing.T) {
	const context, question, answer = "the router picks a model", "Who picks?", "café Zoë 数学 😀 picks the naïve math"
	if _, err := detect(context, question, answer, 0.5); err == nil {
		t.Error("there is an answer without a model")
	}
	if label, _, err := infer(context, answer); err == nil || label != -1 || inferenceLoaded() {
		t.Errorf("inference without a model: %d, %v", label, err)
	}
	if !load("init_hallucination_model", folder(t, "modernbert-hallucination"), 0) ||
		!load("init_nli_model", folder(t, "modernbert-nli"), 0) || !inferenceLoaded() {
		t.Fatal("the inits failed")
	}
	plain, err := detect(context, question, answer, 0.5)
	if err != nil || len(plain) == 0 {
		t.Fatalf("%v, %v", plain, err)
	}
	explained, err := explain(context, question, answer, 0.5)
	if err != nil || len(explained) != len(plain) {
		t.Fatalf("%v, %v", explained, err)
	}
	for i, s := range explained {
		if s.text != plain[i].text || answer[s.start:s.end] != s.text || s.confidence < 0.5 ||
			s.severity != map[int]int{0: 1, 1: 2, 2: 4}[s.inference] {
			t.Errorf("%+v, want the place of %+v", s, plain[i])
		}
	}
	for _, want := range cases(t, "modernbert-nli") {
		shares, winner := softmax(want.Logits)
		label, got, err := infer(want.Text, want.Other)
		if err != nil || label != winner {
			t.Errorf("label %d, %v, want %d", label, err, winner)
		}
		nearAll(t, "the shares", got[:], shares)
	}
}

func TestBatches(t *testing.T) {
	if _, err := classifyBatch([]string{text}); err == nil {
		t.Error("there is an answer without a model")
	}
	if !loadLoRA(folder(t, "modernbert-seq-cls"), folder(t, "bert-token"), folder(t, "deberta-v3-seq")) {
		t.Fatal("the init failed")
	}
	var texts []string
	for _, each := range cases(t, "modernbert-seq-cls") {
		texts = append(texts, each.Text)
	}
	got, err := classifyBatch(texts)
	if err != nil || len(got) != len(texts) {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	names := []string{"biology", "business", "chemistry", "computer science", "economics", "math", "other"}
	for i, each := range got {
		_, winner := softmax(cases(t, "modernbert-seq-cls")[i].Logits)
		_, threat := softmax(cases(t, "deberta-v3-seq")[i].Logits)
		want := map[int]string{0: "none", 1: "INJECTION"}[threat]
		if each.category != names[winner] || each.jailbreak != (threat == 1) || each.threat != want {
			t.Errorf("%q: %+v, want %s and %s", texts[i], each, names[winner], want)
		}
	}
	if !slices.Equal(got[3].types, []string{"PERSON", "EMAIL"}) {
		t.Errorf("%q has %q", texts[3], got[3].types)
	}
	if _, err := classifyBatch(nil); err == nil {
		t.Error("no text is no error")
	}
	if _, err := classifyBatch(make([]string, 1001)); err == nil {
		t.Error("more texts than Go sees are no error")
	}
}

func TestSelectors(t *testing.T) {
	const network = `{"algorithm": "mlp", "trained": true, "model_names": ["small", "large"],
		"feature_dim": 2, "n_classes": 2, "hidden_sizes": [], "dropout": 0, "layers": [{"type": "linear",
		"in_features": 2, "out_features": 2, "weight": [[1, -1], [-1, 1]], "bias": [0, 0.5]}]}`
	untrained, trained := newSelectors(network)
	for _, s := range untrained {
		if s.isTrained() || s.choose([]float64{1, 0}) != "" {
			t.Error("a selector without a network answers")
		}
		s.close()
	}
	for _, s := range trained {
		if !s.isTrained() || s.choose([]float64{1, 0}) != "small" || s.choose([]float64{0, 1}) != "large" {
			t.Errorf("chosen are %q and %q", s.choose([]float64{1, 0}), s.choose([]float64{0, 1}))
		}
		if s.choose([]float64{1}) != "" {
			t.Error("a query of another length is no error")
		}
		if json := s.json(); !strings.Contains(json, `"model_names"`) {
			t.Errorf("written is %q", json)
		}
		s.close()
	}
}

func TestConfigurationsAndFrees(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	content := `{"vocab_size": 256000, "position_embedding_type": "sans_pos", "max_position_embeddings": 8192}`
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if multilingual, long := isMmBert(config); !multilingual || long {
		t.Errorf("multilingual %v, long %v", multilingual, long)
	}
	freeNothing()
}

func TestWhatIsNotBuilt(t *testing.T) {
	if got := unsupported(folder(t, "qwen3-embed-last")); len(got) != 0 {
		t.Errorf("%q did not fail", got)
	}
}

// Many goroutines ask different places at once.
func TestCallersAtOnce(t *testing.T) {
	if !load("init_classifier", folder(t, "bert-seq"), 7) ||
		!load("init_candle_bert_token_classifier", folder(t, "bert-token"), 7) {
		t.Fatal("the inits failed")
	}
	var running sync.WaitGroup
	for range 32 {
		running.Add(1)
		go func() {
			defer running.Done()
			for range 20 {
				got := classify("classify_text", "What is the derivative of x squared?")
				if got.index != 0 || math.Abs(float64(got.confidence)-0.514327) > 1e-4 {
					t.Errorf("class %d with %v", got.index, got.confidence)
				}
				if found, err := tag("classify_candle_bert_tokens", text, ""); err != nil || found[0].text != "My e" {
					t.Errorf("found %v, %v", found, err)
				}
			}
		}()
	}
	running.Wait()
}

func TestTheProgramAnswers(t *testing.T) {
	run := program.Build(t)
	domain, pii, encoder := folder(t, "modernbert-seq-cls"), folder(t, "bert-token"), folder(t, "mmbert-embed-mean")
	output, err := run(domain, pii, encoder, text)
	shares, winner := softmax(cases(t, "modernbert-seq-cls")[3].Logits)
	vector := cases(t, "mmbert-embed-mean")[3].Embedding
	want := regexp.MustCompile(`^domain     class (\d) of 7, (\S+)
pii        PERSON       0.91  bytes 0 to 4: My e
(?:pii        .*\n)+embedding  64 dimensions, the first (\S+)
$`).FindStringSubmatch(output)
	if err != nil || want == nil {
		t.Fatalf("said %q, %v", output, err)
	}
	said, expected := want[1:], []float64{float64(winner), shares[winner], vector[0]}
	for i, each := range said {
		var got float64
		if err := json.Unmarshal([]byte(each), &got); err != nil || math.Abs(got-expected[i]) > 0.006 {
			t.Errorf("said %s, want %v", each, expected[i])
		}
	}
	if output, err := run(pii, pii, encoder); err == nil || !strings.Contains(output, "init_modernbert_classifier") {
		t.Errorf("said %q, %v", output, err)
	}
	if output, err := run(); err == nil || !strings.Contains(output, "usage: candle") {
		t.Errorf("said %q, %v", output, err)
	}
}
