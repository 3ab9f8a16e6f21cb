package generate

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values        []float64
		percent, want float64
	}{
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred[:1], 99, 100},
		{[]float64{3, 1, 2}, 50, 2},
		{[]float64{4, 1, 2, 3}, 50, 2},
		{[]float64{4, 1, 2, 3}, 99, 4},
		{[]float64{4, 1}, 0, 1},
		{nil, 50, 0},
	} {
		if got := Percentile(c.values, c.percent); got != c.want {
			t.Errorf("%v percent of %d values are %v, want %v", c.percent, len(c.values), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the values were sorted in place")
	}
}

func TestACountIsAskedOnceEach(t *testing.T) {
	order := []int{2, 0, 2, 1, 1, 2}
	var mu sync.Mutex
	var inside, most atomic.Int64
	asked := map[int]int{}
	report, err := Run(context.Background(), Request{Callers: 3, Order: order}, 3,
		func(_ context.Context, text int) error {
			if now := inside.Add(1); now > most.Load() {
				most.Store(now)
			}
			defer inside.Add(-1)
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			asked[text]++
			if text == 0 {
				return errors.New("no answer")
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if asked[0] != 1 || asked[1] != 2 || asked[2] != 3 || most.Load() != 3 {
		t.Errorf("asked %v, %d at a time", asked, most.Load())
	}
	if report.Answers != 5 || len(report.Latencies) != 5 || report.Errors != 1 ||
		report.FirstError != "no answer" || report.Callers != 3 {
		t.Errorf("got %+v", report)
	}
	// Two rounds of 20 ms; a busy machine may take longer, never less.
	if report.Seconds < 0.04 || report.P50 < 20 || report.P99 < report.P50 ||
		report.PerSecond != 5/report.Seconds {
		t.Errorf("got %+v", report)
	}
}

func TestSecondsEndARun(t *testing.T) {
	report, err := Run(context.Background(), Request{Callers: 2, Order: []int{0}, Seconds: 0.1}, 1,
		func(context.Context, int) error { time.Sleep(time.Millisecond); return nil })
	if err != nil || report.Seconds < 0.1 || report.Answers < 3 {
		t.Errorf("got %+v, %v", report, err)
	}
}

func TestWhatMeasuresNothingIsRefused(t *testing.T) {
	for want, request := range map[string]Request{
		"callers is 0":    {Order: []int{0}},
		"seconds is -1":   {Callers: 1, Order: []int{0}, Seconds: -1},
		"order is empty":  {Callers: 1},
		"has the text 2":  {Callers: 1, Order: []int{1, 2}},
		"has the text -1": {Callers: 1, Order: []int{-1}},
	} {
		if _, err := Run(context.Background(), request, 2, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", request, err, want)
		}
	}
}

func TestServeAnswersLineByLine(t *testing.T) {
	var out strings.Builder
	in := strings.NewReader(`{"callers":1,"order":[0]}` + "\n" + `{"callers":2,"order":[0,1]}` + "\n")
	err := Serve(in, &out, Hello{About: map[string]string{"version": "1"}},
		func(r Request) (Report, error) { return Report{Callers: r.Callers, Answers: len(r.Order)}, nil })
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err != nil || len(lines) != 3 || lines[0] != `{"about":{"version":"1"}}` {
		t.Fatalf("said %q, %v", lines, err)
	}
	for i, line := range lines[1:] {
		var report Report
		if err := json.Unmarshal([]byte(line), &report); err != nil || report.Answers != i+1 {
			t.Errorf("said %q, %v", line, err)
		}
	}

	out.Reset()
	if err := Serve(in, &out, Hello{Unavailable: "no"}, nil); err != nil ||
		out.String() != `{"unavailable":"no"}`+"\n" {
		t.Errorf("said %q, %v", out.String(), err)
	}
	if err := Serve(strings.NewReader("{"), &out, Hello{}, nil); err == nil {
		t.Error("half a request is no error")
	}
}
