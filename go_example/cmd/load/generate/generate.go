// Package generate makes load: callers that each ask again as soon as they are
// answered, and what that took. It knows nothing of what is asked.
package generate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Request says what one run asks.
type Request struct {
	Callers int `json:"callers"`
	// Order lists texts by their index. Without Seconds each entry is asked once;
	// with Seconds the list is gone through again and again for so long.
	Order   []int   `json:"order"`
	Seconds float64 `json:"seconds"`
	Setting Setting `json:"setting"`
	Vectors bool    `json:"vectors"` // answer with the vectors of Order instead
}

// A Setting is how the program that is asked shall run, where that can be chosen by request.
type Setting struct {
	Threads int  `json:"threads"` // of one run
	Spin    bool `json:"spin"`    // waiting threads keep their processors busy
}

// A Report is what a run took. Latencies are in milliseconds, in no particular order.
type Report struct {
	Callers    int     `json:"callers"`
	Answers    int     `json:"answers"`
	Errors     int     `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"` // of the whole process
	// Of all answers together before they began to run; of who is asked, not noted by Run.
	QueueSeconds float64     `json:"queue_seconds"`
	PerSecond    float64     `json:"per_second"`
	P50          float64     `json:"p50_ms"`
	P99          float64     `json:"p99_ms"`
	Latencies    []float64   `json:"latencies_ms,omitempty"`
	Vectors      [][]float32 `json:"vectors,omitempty"`
}

// A Hello is the first thing a serving program says: what it is, or why it cannot serve.
type Hello struct {
	Unavailable string            `json:"unavailable,omitempty"`
	About       map[string]string `json:"about,omitempty"`
}

// An Ask asks for the text of an index and waits for the answer.
type Ask func(ctx context.Context, text int) error

// check refuses what would measure nothing; there are so many texts.
func (r Request) check(texts int) error {
	if r.Callers < 1 && !r.Vectors {
		return fmt.Errorf("callers is %d; give 1 or more", r.Callers)
	}
	if r.Seconds < 0 {
		return fmt.Errorf("seconds is %v; give 0 or more", r.Seconds)
	}
	if len(r.Order) == 0 {
		return errors.New("order is empty; list the texts to ask")
	}
	for _, text := range r.Order {
		if text < 0 || text >= texts {
			return fmt.Errorf("order has the text %d, there are %d", text, texts)
		}
	}
	return nil
}

// Run lets the callers ask and reports what it took. Calls that failed count as
// errors only: they are neither in the throughput nor in the latencies.
func Run(ctx context.Context, request Request, texts int, ask Ask) (Report, error) {
	if err := request.check(texts); err != nil {
		return Report{}, err
	}
	var (
		next    atomic.Int64
		mu      sync.Mutex
		running sync.WaitGroup
		report  = Report{Callers: request.Callers}
	)
	limit := time.Duration(request.Seconds * float64(time.Second))
	cpu := cpuSeconds()
	begin := time.Now()
	for range request.Callers {
		running.Add(1)
		go func() {
			defer running.Done()
			var latencies []float64
			var failed []error
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if limit > 0 && time.Since(begin) >= limit || limit == 0 && i >= len(request.Order) {
					break
				}
				started := time.Now()
				if err := ask(ctx, request.Order[i%len(request.Order)]); err != nil {
					failed = append(failed, err)
				} else {
					latencies = append(latencies, time.Since(started).Seconds()*1e3)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			report.Latencies = append(report.Latencies, latencies...)
			report.Errors += len(failed)
			if len(failed) > 0 && report.FirstError == "" {
				report.FirstError = failed[0].Error()
			}
		}()
	}
	running.Wait()
	report.Seconds = time.Since(begin).Seconds()
	report.CPUSeconds = cpuSeconds() - cpu
	report.Answers = len(report.Latencies)
	report.PerSecond = float64(report.Answers) / report.Seconds
	report.P50, report.P99 = Percentile(report.Latencies, 50), Percentile(report.Latencies, 99)
	return report, ctx.Err()
}

// Percentile is the smallest value that at least so many percent do not exceed
// (nearest rank); NaN has no place in JSON, so of no values it is 0.
func Percentile(values []float64, percent float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	rank := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Serve says hello and answers each line of in, a Request, with a line that is a Report.
func Serve(in io.Reader, out io.Writer, hello Hello, answer func(Request) (Report, error)) error {
	write := json.NewEncoder(out)
	if err := write.Encode(hello); err != nil || hello.Unavailable != "" {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var request Request
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return fmt.Errorf("a request is not JSON of the right form: %w", err)
		}
		report, err := answer(request)
		if err != nil {
			return err
		}
		if err := write.Encode(report); err != nil {
			return err
		}
	}
	return lines.Err()
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
