//go:build cgo

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheProgramAsksABackend(t *testing.T) {
	models := os.Getenv("SEMANTIC_TEST_MODELS")
	if models == "" {
		t.Fatal("SEMANTIC_TEST_MODELS is not set; set it to the folder tests/golden/models of the repository")
	}
	source, err := os.ReadFile("main.go")
	if lines := bytes.Count(source, []byte("\n")); err != nil || lines >= 40 {
		t.Errorf("the program has %d lines, it should have less than 40; %v", lines, err)
	}
	program := filepath.Join(t.TempDir(), "router")
	if output, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	run := func(args ...string) (string, error) {
		command := exec.Command(program, args...)
		command.Env = []string{}
		output, err := command.CombinedOutput()
		return string(output), err
	}
	output, err := run(filepath.Join(models, "bert-seq"), "What is the derivative of x squared?")
	if want := "biology 0.51 What is the derivative of x squared?\n"; err != nil || output != want {
		t.Errorf("said %q, %v, want %q", output, err, want)
	}
	output, err = run(filepath.Join(models, "bert-token"), "a")
	if err == nil || !strings.Contains(output, "cannot do sequence_classification") {
		t.Errorf("said %q, %v", output, err)
	}
	if output, err = run(); err == nil || !strings.Contains(output, "usage: router") {
		t.Errorf("said %q, %v", output, err)
	}
}
