//go:build cgo

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/internal/program"
)

func TestTheProgramAsksABackend(t *testing.T) {
	models := program.Models(t)
	source, err := os.ReadFile("main.go")
	if lines := bytes.Count(source, []byte("\n")); err != nil || lines >= 40 {
		t.Errorf("the program has %d lines, it should have less than 40; %v", lines, err)
	}
	run := program.Build(t)
	output, err := run(filepath.Join(models, "bert-seq"), "What is the derivative of x squared?")
	if want := "biology 0.51 What is the derivative of x squared?\n"; err != nil || output != want {
		t.Errorf("said %q, %v, want %q", output, err, want)
	}
	output, err = run(filepath.Join(models, "bert-token"), "a")
	if err == nil || !strings.Contains(output, "sequence_classification: needs a model for sequence classification") {
		t.Errorf("said %q, %v", output, err)
	}
	if output, err = run(); err == nil || !strings.Contains(output, "usage: router") {
		t.Errorf("said %q, %v", output, err)
	}
}
