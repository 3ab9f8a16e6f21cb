//go:build cgo

package metrics

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// The counters of a runtime that has answered one text, and then was closed.
func TestARuntimeIsASource(t *testing.T) {
	ctx := context.Background()
	models := os.Getenv("SEMANTIC_TEST_MODELS")
	if models == "" {
		t.Fatal("SEMANTIC_TEST_MODELS is not set; run make test-go")
	}
	rt, err := semantic.Open(ctx, semantic.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	model, err := rt.Load(ctx, filepath.Join(models, "bert-seq"), semantic.LoadOptions{Name: "domain"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Classify(ctx, []string{"math"}, semantic.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(NewCollector(rt)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []map[string]float64{
		{"libsemantic_running": 1, "domain completed": 1, "ready": 1},
		{"libsemantic_running": 0, "(closed) completed": 1, "ready": 0},
	} {
		got := gather(t, registry)
		for name, value := range want {
			if found, ok := got[name]; !ok || found != value {
				t.Errorf("%s is %v (%v), want %v", name, found, ok, value)
			}
		}
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// gather returns the value of "libsemantic_running", of rows by model and outcome, and of models by state.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			labels := map[string]string{}
			for _, label := range metric.Label {
				labels[label.GetName()] = label.GetValue()
			}
			switch family.GetName() {
			case "libsemantic_running":
				out[family.GetName()] = metric.Gauge.GetValue()
			case "libsemantic_models":
				out[labels["state"]] = metric.Gauge.GetValue()
			case "libsemantic_rows_total":
				out[labels["model"]+" "+labels["outcome"]] = metric.Counter.GetValue()
			}
		}
	}
	return out
}
