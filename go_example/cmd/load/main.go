// Load asks models from many goroutines at once and prints what that took, as JSON.
//
//	load -texts FILE [-callers 1,8,32] [-count N] [-seconds S] MODEL_FOLDER...
//
// FILE is a JSON list of objects with a "text", such as bench/texts.py writes. For each
// number of callers it asks for N texts, or for S seconds, going through the list in
// turn, and prints one line: throughput, p50 and p99 in milliseconds, errors. Of several
// models each request asks all at once and ends with the last answer; the same folder may
// be given more than once.
//
// With -serve it reads requests from standard input instead; see package generate.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libsemantic/libsemantic/go_example/cmd/load/generate"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

var precisions = map[string]semantic.Precision{
	"auto": semantic.PrecisionAuto,
	"fp32": semantic.PrecisionFP32,
	"fp16": semantic.PrecisionFP16,
	"bf16": semantic.PrecisionBF16,
	"int8": semantic.PrecisionINT8,
}

type settings struct {
	texts       string
	callers     []int
	count       int
	seconds     float64
	serve       bool
	precision   semantic.Precision
	device      string
	environment string
	threads     int
	maxTokens   int
	batchRows   int
	folders     []string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("load: ")
	s, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := load(context.Background(), s, os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	var callers, precision string
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.StringVar(&s.texts, "texts", "", "JSON `file` with the texts")
	flags.StringVar(&callers, "callers", "1,8,32", "`numbers` of callers, one run each")
	flags.IntVar(&s.count, "count", 0, "texts to ask for in a run; default: the list once")
	flags.Float64Var(&s.seconds, "seconds", 0, "length of a run, in place of a count")
	flags.BoolVar(&s.serve, "serve", false, "answer requests on standard input")
	flags.StringVar(&precision, "precision", "auto", "auto, fp32, fp16, bf16 or int8")
	flags.StringVar(&s.device, "device", "", "device of the models; default auto")
	flags.StringVar(&s.environment, "environment", "", "`folder` of the library's Python environment")
	flags.IntVar(&s.threads, "threads", 0, "threads of one run; default: the CPUs of the process")
	flags.IntVar(&s.maxTokens, "max-tokens", 0, "longest text scored whole; default: as the folder declares")
	flags.IntVar(&s.batchRows, "max-batch-rows", 0, "texts in one run; 1: no batches; default: the library's")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	for _, field := range strings.Split(callers, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 {
			return s, fmt.Errorf("-callers has %q; give numbers from 1 on, such as 1,8,32", field)
		}
		s.callers = append(s.callers, n)
	}
	known := false
	if s.precision, known = precisions[precision]; !known {
		return s, fmt.Errorf("-precision is %q; give auto, fp32, fp16, bf16 or int8", precision)
	}
	if s.count < 0 || s.seconds < 0 || s.count > 0 && s.seconds > 0 {
		return s, errors.New("give -count or -seconds, 1 or more, not both")
	}
	s.folders = flags.Args()
	if s.texts == "" || len(s.folders) == 0 {
		return s, errors.New("usage: load -texts FILE MODEL_FOLDER... (load -help lists the options)")
	}
	return s, nil
}

// load does what the settings say: one run for each number of callers, or what in asks for.
func load(ctx context.Context, s settings, in io.Reader, out io.Writer) error {
	texts, err := readTexts(s.texts)
	if err != nil {
		return err
	}
	rt, err := semantic.Open(ctx, semantic.Options{Environment: s.environment})
	if err != nil {
		return refuse(err, s, out)
	}
	defer rt.Close() // unloads the models too
	models := make([]*semantic.Model, len(s.folders))
	asks := make([]generate.Ask, len(s.folders))
	about := map[string]string{"version": semantic.Version()}
	for i, folder := range s.folders {
		var info *semantic.Info
		if models[i], info, err = open(ctx, rt, folder, i, s); err != nil {
			return refuse(err, s, out)
		}
		if asks[i], err = asking(models[i], info.Task, texts); err != nil {
			return err
		}
		about["provider"], about["dtype"] = info.Provider, info.DType
	}
	answer := func(request generate.Request) (generate.Report, error) {
		if request.Vectors {
			return vectors(ctx, models[0], texts, request.Order)
		}
		before, err := queued(rt)
		if err != nil {
			return generate.Report{}, err
		}
		report, err := generate.Run(ctx, request, len(texts), together(asks))
		if err != nil {
			return report, err
		}
		after, err := queued(rt)
		report.QueueSeconds = (after - before).Seconds()
		return report, err
	}
	if s.serve {
		return generate.Serve(in, out, generate.Hello{About: about}, answer)
	}
	for _, callers := range s.callers {
		report, err := answer(request(s, callers, len(texts)))
		if err != nil {
			return err
		}
		report.Latencies = nil
		if err := json.NewEncoder(out).Encode(report); err != nil {
			return err
		}
	}
	return nil
}

func readTexts(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var entries []struct{ Text string }
	if err := json.Unmarshal(data, &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s lists no texts", path)
	}
	texts := make([]string, len(entries))
	for i, entry := range entries {
		texts[i] = entry.Text
	}
	return texts, nil
}

// request asks for the count of texts, or for the list once or as long as it takes.
func request(s settings, callers, texts int) generate.Request {
	count := s.count
	if count == 0 {
		count = texts
	}
	order := make([]int, count)
	for i := range order {
		order[i] = i % texts
	}
	return generate.Request{Callers: callers, Order: order, Seconds: s.seconds}
}

// open loads a folder under a name of its own, so that one can be loaded twice.
func open(
	ctx context.Context, rt *semantic.Runtime, folder string, number int, s settings,
) (*semantic.Model, *semantic.Info, error) {
	model, err := rt.Load(ctx, folder, semantic.LoadOptions{
		Name:           fmt.Sprintf("model %d", number),
		Precision:      s.precision,
		Device:         s.device,
		IntraOpThreads: s.threads,
		MaxTokens:      s.maxTokens,
		MaxBatchRows:   s.batchRows,
	})
	if err != nil {
		return nil, nil, err
	}
	info, err := model.Info()
	return model, info, err
}

// refuse tells who waits for requests why a model does not load; to others it is an error.
func refuse(err error, s settings, out io.Writer) error {
	if s.serve {
		return generate.Serve(nil, out, generate.Hello{Unavailable: err.Error()}, nil)
	}
	return err
}

// queued is the time that all calls together have waited for their first run.
func queued(rt *semantic.Runtime) (time.Duration, error) {
	stats, err := rt.Stats()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, call := range stats.Calls {
		sum += call.Phases[semantic.PhaseQueue-1].Sum
	}
	return sum, nil
}

// asking returns the call that suits the model's task.
func asking(model *semantic.Model, task semantic.Task, texts []string) (generate.Ask, error) {
	calls := map[semantic.Task]func(context.Context, []string) error{
		semantic.TaskEmbedding: func(ctx context.Context, text []string) error {
			_, err := model.Embed(ctx, text, semantic.RunOptions{})
			return err
		},
		semantic.TaskSequenceClassification: func(ctx context.Context, text []string) error {
			_, err := model.Classify(ctx, text, semantic.RunOptions{})
			return err
		},
		semantic.TaskTokenClassification: func(ctx context.Context, text []string) error {
			_, err := model.ClassifyTokens(ctx, text, semantic.RunOptions{})
			return err
		},
	}
	call, ok := calls[task]
	if !ok {
		return nil, fmt.Errorf("no call is known for the task %v", task)
	}
	return func(ctx context.Context, text int) error { return call(ctx, texts[text:text+1]) }, nil
}

// together asks all at once and waits for the last.
func together(asks []generate.Ask) generate.Ask {
	if len(asks) == 1 {
		return asks[0]
	}
	return func(ctx context.Context, text int) error {
		errs := make([]error, len(asks))
		var running sync.WaitGroup
		for i, ask := range asks {
			running.Add(1)
			go func() {
				defer running.Done()
				errs[i] = ask(ctx, text)
			}()
		}
		running.Wait()
		return errors.Join(errs...)
	}
}

// vectors embeds texts one by one, so that what is measured can be compared.
func vectors(
	ctx context.Context, model *semantic.Model, texts []string, order []int,
) (generate.Report, error) {
	var report generate.Report
	for _, text := range order {
		found, err := model.Embed(ctx, texts[text:text+1], semantic.RunOptions{})
		if err != nil {
			return report, err
		}
		report.Vectors = append(report.Vectors, found.Rows[0].Vector)
	}
	return report, nil
}
