package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build builds this program as a user does, with cgo ("1") or without ("0").
func build(t *testing.T, cgo string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "demo")
	command := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return program
}

// run returns what a program prints when it is run with an empty environment.
func run(program string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	command := exec.Command(program, args...)
	command.Env = []string{}
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	return out.String(), errs.String(), err
}

func TestTheProgramWithoutCgoFailsClosed(t *testing.T) {
	program := build(t, "0")
	for _, args := range [][]string{{"backends", "--json"}, {"backends"}, {"a", "b"}} {
		stdout, stderr, err := run(program, args...)
		if err == nil || stdout != "" || !strings.Contains(stderr, "CGO_ENABLED=1") {
			t.Errorf("%q: said %q, %q, %v", args, stdout, stderr, err)
		}
	}
}

func TestTheModuleCompilesWithoutCgo(t *testing.T) {
	for _, args := range [][]string{{"build", "./..."}, {"vet", "./..."}} {
		command := exec.Command("go", args...)
		command.Dir = filepath.Join("..", "..")
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("go %v: %v\n%s", args, err, output)
		}
	}
}
