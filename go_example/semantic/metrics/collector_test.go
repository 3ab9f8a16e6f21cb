package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

type source struct {
	stats *semantic.Stats
	err   error
}

func (s source) Stats() (*semantic.Stats, error) { return s.stats, s.err }

func example() *semantic.Stats {
	times := func(sum time.Duration, counts ...uint64) semantic.Histogram[time.Duration] {
		return semantic.Histogram[time.Duration]{Counts: counts, Sum: sum}
	}
	return &semantic.Stats{
		Running:             true,
		ModelsReady:         2,
		ModelsLoading:       1,
		LatencyBounds:       []time.Duration{time.Millisecond, time.Second},
		BatchBounds:         []int{1, 8},
		Memory:              []semantic.MemoryStats{{Owner: "model pii", Bytes: 1000}},
		ResultsUnfreed:      3,
		ResultsUnfreedBytes: 96,
		LogDropped:          7,
		Calls: []semantic.CallStats{{
			ModelID: 5, ModelName: "pii", Call: semantic.CallClassifyTokens,
			Accepted: 21, Completed: 10, Failed: 2, Expired: 3, Cancelled: 4, InFlight: 2, Refused: 6,
			Tokens: 500, PaddingTokens: 50, Truncated: 1, Batches: 9,
			Latency: times(2500*time.Millisecond, 1, 3, 2),
			Phases: [semantic.PhaseDecode]semantic.Histogram[time.Duration]{
				times(time.Millisecond, 6, 0, 0),
				times(time.Second, 0, 5, 0),
				times(1400*time.Millisecond, 0, 4, 1),
				times(99*time.Millisecond, 0, 4, 0),
			},
			BatchRows: semantic.Histogram[uint64]{Counts: []uint64{4, 5, 0}, Sum: 30},
		}},
	}
}

func TestEveryNumberIsAMetric(t *testing.T) {
	want := `
# HELP libsemantic_call_duration_seconds Time of calls in the library.
# TYPE libsemantic_call_duration_seconds histogram
libsemantic_call_duration_seconds_bucket{call="classify_tokens",model="pii",le="0.001"} 1
libsemantic_call_duration_seconds_bucket{call="classify_tokens",model="pii",le="1"} 4
libsemantic_call_duration_seconds_bucket{call="classify_tokens",model="pii",le="+Inf"} 6
libsemantic_call_duration_seconds_sum{call="classify_tokens",model="pii"} 2.5
libsemantic_call_duration_seconds_count{call="classify_tokens",model="pii"} 6
# HELP libsemantic_log_lines_dropped_total Lines of the log that were lost, their handler being slow.
# TYPE libsemantic_log_lines_dropped_total counter
libsemantic_log_lines_dropped_total 7
# HELP libsemantic_memory_bytes Memory by owner.
# TYPE libsemantic_memory_bytes gauge
libsemantic_memory_bytes{owner="model pii"} 1000
# HELP libsemantic_models Models by state.
# TYPE libsemantic_models gauge
libsemantic_models{state="loading"} 1
libsemantic_models{state="ready"} 2
libsemantic_models{state="stopping"} 0
# HELP libsemantic_padding_tokens_total Padding that was computed beside the tokens.
# TYPE libsemantic_padding_tokens_total counter
libsemantic_padding_tokens_total{call="classify_tokens",model="pii"} 50
# HELP libsemantic_phase_duration_seconds Time of the phases of calls.
# TYPE libsemantic_phase_duration_seconds histogram
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="decode",le="0.001"} 0
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="decode",le="1"} 4
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="decode",le="+Inf"} 4
libsemantic_phase_duration_seconds_sum{call="classify_tokens",model="pii",phase="decode"} 0.099
libsemantic_phase_duration_seconds_count{call="classify_tokens",model="pii",phase="decode"} 4
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="queue",le="0.001"} 0
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="queue",le="1"} 5
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="queue",le="+Inf"} 5
libsemantic_phase_duration_seconds_sum{call="classify_tokens",model="pii",phase="queue"} 1
libsemantic_phase_duration_seconds_count{call="classify_tokens",model="pii",phase="queue"} 5
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="run",le="0.001"} 0
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="run",le="1"} 4
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="run",le="+Inf"} 5
libsemantic_phase_duration_seconds_sum{call="classify_tokens",model="pii",phase="run"} 1.4
libsemantic_phase_duration_seconds_count{call="classify_tokens",model="pii",phase="run"} 5
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="tokenize",le="0.001"} 6
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="tokenize",le="1"} 6
libsemantic_phase_duration_seconds_bucket{call="classify_tokens",model="pii",phase="tokenize",le="+Inf"} 6
libsemantic_phase_duration_seconds_sum{call="classify_tokens",model="pii",phase="tokenize"} 0.001
libsemantic_phase_duration_seconds_count{call="classify_tokens",model="pii",phase="tokenize"} 6
# HELP libsemantic_rows_in_flight Rows that were taken on and are not answered yet.
# TYPE libsemantic_rows_in_flight gauge
libsemantic_rows_in_flight{call="classify_tokens",model="pii"} 2
# HELP libsemantic_rows_total Rows (texts or pairs) by what became of them.
# TYPE libsemantic_rows_total counter
libsemantic_rows_total{call="classify_tokens",model="pii",outcome="cancelled"} 4
libsemantic_rows_total{call="classify_tokens",model="pii",outcome="completed"} 10
libsemantic_rows_total{call="classify_tokens",model="pii",outcome="expired"} 3
libsemantic_rows_total{call="classify_tokens",model="pii",outcome="failed"} 2
libsemantic_rows_total{call="classify_tokens",model="pii",outcome="refused"} 6
# HELP libsemantic_run_rows Texts and windows in a run of the model.
# TYPE libsemantic_run_rows histogram
libsemantic_run_rows_bucket{call="classify_tokens",model="pii",le="1"} 4
libsemantic_run_rows_bucket{call="classify_tokens",model="pii",le="8"} 9
libsemantic_run_rows_bucket{call="classify_tokens",model="pii",le="+Inf"} 9
libsemantic_run_rows_sum{call="classify_tokens",model="pii"} 30
libsemantic_run_rows_count{call="classify_tokens",model="pii"} 9
# HELP libsemantic_running 1 between the start of the runtime and its end.
# TYPE libsemantic_running gauge
libsemantic_running 1
# HELP libsemantic_tokens_total Tokens that were scored.
# TYPE libsemantic_tokens_total counter
libsemantic_tokens_total{call="classify_tokens",model="pii"} 500
# HELP libsemantic_truncated_rows_total Rows of which not every token was scored.
# TYPE libsemantic_truncated_rows_total counter
libsemantic_truncated_rows_total{call="classify_tokens",model="pii"} 1
# HELP libsemantic_unfreed_result_bytes Size of the results that are not given back yet.
# TYPE libsemantic_unfreed_result_bytes gauge
libsemantic_unfreed_result_bytes 96
# HELP libsemantic_unfreed_results Results that are not given back yet.
# TYPE libsemantic_unfreed_results gauge
libsemantic_unfreed_results 3
`
	if err := testutil.CollectAndCompare(NewCollector(source{stats: example()}), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestTheMetricsFollowTheRulesOfPrometheus(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewCollector(source{stats: example()}))
	if err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(NewCollector(source{stats: example()})); err != nil {
		t.Error(err)
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}

func TestStatisticsThatCannotBeReadAreAnError(t *testing.T) {
	failure := errors.New("no statistics today")
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(NewCollector(source{err: failure})); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err == nil || !strings.Contains(err.Error(), failure.Error()) || len(families) != 0 {
		t.Errorf("got %v, %v", families, err)
	}
}
