//go:build cgo

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
)

func TestTheProgramHoldsLibsemanticOnce(t *testing.T) {
	program := build(t, "1")
	stdout, stderr, err := run(program, "backends", "--json")
	if err != nil || stderr != "" {
		t.Fatalf("%v\n%s", err, stderr)
	}
	var said struct {
		Backends []struct {
			Name         native.Backend      `json:"name"`
			Capabilities []native.Capability `json:"capabilities"`
			Models       *[]json.RawMessage  `json:"models"`
		} `json:"backends"`
	}
	if err := json.Unmarshal([]byte(stdout), &said); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	if len(said.Backends) != 1 || said.Backends[0].Name != "libsemantic" {
		t.Fatalf("the backends are %s", stdout)
	}
	backend := said.Backends[0]
	if !slices.Contains(backend.Capabilities, "embedding") || backend.Models == nil || len(*backend.Models) != 0 {
		t.Errorf("it says %s", stdout)
	}

	stdout, _, err = run(program, "backends")
	if err != nil || strings.Count(stdout, "libsemantic\n") != 1 {
		t.Errorf("%v\n%s", err, stdout)
	}
	stdout, stderr, err = run(program, "backends", "all")
	if err == nil || stdout != "" || !strings.Contains(stderr, `"all"`) {
		t.Errorf("said %q, %q, %v", stdout, stderr, err)
	}
}
