//go:build cgo

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/cmd/load/generate"
	"github.com/libsemantic/libsemantic/go_example/internal/program"
)

// folders returns golden models and a file with three texts.
func folders(t *testing.T, names ...string) settings {
	t.Helper()
	root := program.Models(t)
	s := settings{texts: filepath.Join(t.TempDir(), "texts.json"), device: "cpu"}
	texts := `[{"text": "math"}, {"text": "what is the sum", "tokens": 6}, {"text": "math"}]`
	if err := os.WriteFile(s.texts, []byte(texts), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		s.folders = append(s.folders, filepath.Join(root, name))
	}
	return s
}

func TestModelsOfAllTasksAreAskedTogether(t *testing.T) {
	s := folders(t, "bert-seq", "bert-token", "bert-embed-mean", "bert-seq")
	s.callers, s.count = []int{1, 4, 300}, 400 // 300 are more than enter the library at once
	var out bytes.Buffer
	if err := load(context.Background(), s, nil, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(s.callers) {
		t.Fatalf("said %q", lines)
	}
	for i, line := range lines {
		var report generate.Report
		if err := json.Unmarshal([]byte(line), &report); err != nil || report.Callers != s.callers[i] ||
			report.Answers != 400 || report.Errors != 0 || report.P99 < report.P50 || report.P50 <= 0 || report.QueueSeconds < 0 ||
			report.Latencies != nil {
			t.Errorf("said %s, %v", line, err)
		}
	}
}

func TestVectorsAreServed(t *testing.T) {
	s := folders(t, "bert-embed-mean")
	s.serve = true
	in := strings.NewReader(`{"vectors": true, "order": [0, 1, 2]}` + "\n" + `{"callers": 2, "order": [1, 0]}`)
	var out bytes.Buffer
	if err := load(context.Background(), s, in, &out); err != nil {
		t.Fatal(err)
	}
	var hello generate.Hello
	var vectors, report generate.Report
	answers := json.NewDecoder(&out)
	for _, each := range []any{&hello, &vectors, &report} {
		if err := answers.Decode(each); err != nil {
			t.Fatal(err)
		}
	}
	if hello.About["provider"] != "CPUExecutionProvider" || len(vectors.Vectors) != 3 ||
		report.Answers != 2 || len(report.Latencies) != 2 {
		t.Fatalf("said %+v, %d vectors, %+v", hello, len(vectors.Vectors), report)
	}
	cosine := func(a, b []float32) (sum float64) {
		for i := range a {
			sum += float64(a[i] * b[i])
		}
		return sum
	}
	// Texts 0 and 2 are the same.
	if v := vectors.Vectors; math.Abs(cosine(v[0], v[2])-1) > 1e-5 || cosine(v[0], v[1]) > 0.9999 {
		t.Errorf("cosines %v and %v", cosine(v[0], v[2]), cosine(v[0], v[1]))
	}
}

func TestWhatCannotBeServedIsSaid(t *testing.T) {
	s := folders(t, "no such model")
	s.serve = true
	var out bytes.Buffer
	err := load(context.Background(), s, nil, &out)
	var hello generate.Hello
	if err != nil || json.Unmarshal(out.Bytes(), &hello) != nil || !strings.Contains(hello.Unavailable, "NOT_FOUND") {
		t.Errorf("said %q, %v", out.String(), err)
	}
	s.serve = false
	if err := load(context.Background(), s, nil, &out); err == nil {
		t.Error("a missing model is no error")
	}
}
