// Package program builds the programs of this module for their tests, and runs them.
package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Models returns the folder of the tiny models, or ends the test.
func Models(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("SEMANTIC_TEST_MODELS")
	if folder == "" {
		t.Fatal("SEMANTIC_TEST_MODELS is not set; set it to the folder tests/golden/models of the repository")
	}
	return folder
}

// Build builds the program in the current folder and returns what runs it, without any environment:
// its answer is all that it writes.
func Build(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if output, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return func(args ...string) (string, error) {
		command := exec.Command(path, args...)
		command.Env = []string{}
		output, err := command.CombinedOutput()
		return string(output), err
	}
}
