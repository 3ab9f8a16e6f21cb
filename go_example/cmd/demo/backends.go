package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/assembly"
)

// A backend is what showBackends says of an adapter.
type backend struct {
	Name native.Backend `json:"name"`
	native.CapabilitySet
	Models []native.ModelInfo `json:"models"`
}

// showBackends assembles the backends of this program and says what they can do.
func showBackends(ctx context.Context, out io.Writer, args []string) (err error) {
	flags := flag.NewFlagSet("demo backends", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("backends takes no %q; usage: demo backends [--json]", flags.Arg(0))
	}
	registry, err := assembly.Assemble(ctx, assembly.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	backends := []backend{}
	for _, name := range registry.List() {
		adapter, err := registry.Get(name)
		if err != nil {
			return err
		}
		backends = append(backends, backend{adapter.Name(), adapter.Capabilities(), adapter.Info()})
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string][]backend{"backends": backends})
	}
	for _, b := range backends {
		fmt.Fprintf(out, "%s\n  capabilities %v\n  families     %v\n  artifacts    %v\n",
			b.Name, b.Capabilities, b.SupportedFamilies, b.SupportedArtifacts)
	}
	return nil
}
