// Package metrics shows the statistics of libsemantic to Prometheus:
//
//	prometheus.MustRegister(metrics.NewCollector(runtime))
package metrics

import (
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// A Source gives statistics; a *semantic.Runtime does, also after it was closed.
type Source interface {
	Stats() (*semantic.Stats, error)
}

// A Collector reads the statistics of the library each time it is asked for metrics; it
// keeps no numbers of its own. It is safe from any goroutine.
type Collector struct {
	source Source

	runtime []family[*semantic.Stats]
	calls   []family[*semantic.CallStats]

	models, memory, rows, latency, phases, batches *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// A family is a row of the tables below: a metric, and how to read its value.
type family[From any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(From) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("libsemantic_"+name, help, labels, nil)
}

var outcomes = []struct {
	name  string
	value func(*semantic.CallStats) uint64
}{
	{"completed", func(c *semantic.CallStats) uint64 { return c.Completed }},
	{"failed", func(c *semantic.CallStats) uint64 { return c.Failed }},
	{"expired", func(c *semantic.CallStats) uint64 { return c.Expired }},
	{"cancelled", func(c *semantic.CallStats) uint64 { return c.Cancelled }},
	{"refused", func(c *semantic.CallStats) uint64 { return c.Refused }},
}

// NewCollector makes a collector for the runtime of the process. Register one: all
// handles of a runtime have the same statistics. The models of the past are together the
// model "(closed)".
func NewCollector(source Source) *Collector {
	return &Collector{
		source: source,
		runtime: []family[*semantic.Stats]{
			{describe("running", "1 between the start of the runtime and its end."),
				prometheus.GaugeValue, func(s *semantic.Stats) float64 {
					if s.Running {
						return 1
					}
					return 0
				}},
			{describe("unfreed_results", "Results that are not given back yet."),
				prometheus.GaugeValue, func(s *semantic.Stats) float64 { return float64(s.ResultsUnfreed) }},
			{describe("unfreed_result_bytes", "Size of the results that are not given back yet."),
				prometheus.GaugeValue, func(s *semantic.Stats) float64 { return float64(s.ResultsUnfreedBytes) }},
			{describe("log_lines_dropped_total", "Lines of the log that were lost, their handler being slow."),
				prometheus.CounterValue, func(s *semantic.Stats) float64 { return float64(s.LogDropped) }},
		},
		calls: []family[*semantic.CallStats]{
			{describe("rows_in_flight", "Rows that were taken on and are not answered yet.", "model", "call"),
				prometheus.GaugeValue, func(c *semantic.CallStats) float64 { return float64(c.InFlight) }},
			{describe("tokens_total", "Tokens that were scored.", "model", "call"),
				prometheus.CounterValue, func(c *semantic.CallStats) float64 { return float64(c.Tokens) }},
			{describe("padding_tokens_total", "Padding that was computed beside the tokens.", "model", "call"),
				prometheus.CounterValue, func(c *semantic.CallStats) float64 { return float64(c.PaddingTokens) }},
			{describe("truncated_rows_total", "Rows of which not every token was scored.", "model", "call"),
				prometheus.CounterValue, func(c *semantic.CallStats) float64 { return float64(c.Truncated) }},
		},
		models:  describe("models", "Models by state.", "state"),
		memory:  describe("memory_bytes", "Memory by owner.", "owner"),
		rows:    describe("rows_total", "Rows (texts or pairs) by what became of them.", "model", "call", "outcome"),
		latency: describe("call_duration_seconds", "Time of calls in the library.", "model", "call"),
		phases:  describe("phase_duration_seconds", "Time of the phases of calls.", "model", "call", "phase"),
		batches: describe("run_rows", "Texts and windows in a run of the model.", "model", "call"),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.runtime {
		out <- f.desc
	}
	for _, f := range c.calls {
		out <- f.desc
	}
	for _, desc := range []*prometheus.Desc{
		c.models, c.memory, c.rows, c.latency, c.phases, c.batches,
	} {
		out <- desc
	}
}

// Collect implements prometheus.Collector. Statistics that cannot be read make the
// whole collection an error, as a gap is better than zeros.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	stats, err := c.source.Stats()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.runtime[0].desc, err)
		return
	}
	for _, f := range c.runtime {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(stats))
	}
	for state, n := range map[semantic.State]int{
		semantic.StateLoading:  stats.ModelsLoading,
		semantic.StateReady:    stats.ModelsReady,
		semantic.StateStopping: stats.ModelsStopping,
	} {
		out <- prometheus.MustNewConstMetric(c.models, prometheus.GaugeValue, float64(n), state.String())
	}
	for _, m := range stats.Memory {
		out <- prometheus.MustNewConstMetric(c.memory, prometheus.GaugeValue, float64(m.Bytes), m.Owner)
	}
	for i := range stats.Calls {
		c.collectCall(out, stats, &stats.Calls[i])
	}
}

func (c *Collector) collectCall(
	out chan<- prometheus.Metric, stats *semantic.Stats, counted *semantic.CallStats,
) {
	model, call := counted.ModelName, snakeCase(counted.Call.String())
	for _, f := range c.calls {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(counted), model, call)
	}
	for _, o := range outcomes {
		n := float64(o.value(counted))
		out <- prometheus.MustNewConstMetric(c.rows, prometheus.CounterValue, n, model, call, o.name)
	}
	seconds := make([]float64, len(stats.LatencyBounds))
	for i, bound := range stats.LatencyBounds {
		seconds[i] = bound.Seconds()
	}
	sizes := make([]float64, len(stats.BatchBounds))
	for i, bound := range stats.BatchBounds {
		sizes[i] = float64(bound)
	}
	out <- histogram(c.latency, seconds, counted.Latency.Counts, counted.Latency.Sum.Seconds(), model, call)
	for i, p := range counted.Phases {
		phase := semantic.Phase(i + 1).String()
		out <- histogram(c.phases, seconds, p.Counts, p.Sum.Seconds(), model, call, phase)
	}
	out <- histogram(c.batches, sizes, counted.BatchRows.Counts, float64(counted.BatchRows.Sum), model, call)
}

// histogram counts up the buckets, as Prometheus wants them.
func histogram(
	desc *prometheus.Desc, bounds []float64, counts []uint64, sum float64, labels ...string,
) prometheus.Metric {
	buckets := make(map[float64]uint64, len(bounds))
	var total uint64
	for i, n := range counts {
		total += n
		if i < len(bounds) {
			buckets[bounds[i]] = total
		}
	}
	return prometheus.MustNewConstHistogram(desc, total, sum, buckets, labels...)
}

// snakeCase turns "ClassifyTokens" into "classify_tokens".
func snakeCase(name string) string {
	var out strings.Builder
	for i, letter := range name {
		if i > 0 && unicode.IsUpper(letter) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(letter))
	}
	return out.String()
}
