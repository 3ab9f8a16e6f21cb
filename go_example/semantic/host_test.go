//go:build cgo

package semantic

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What the library must leave to the Go program that holds it: its signals, its
// profiler, its children and the number of its threads.

func init() {
	children["caught signals"] = caughtSignals
	children["burst"] = burst
	children["signal by default"] = func(models string) error { return classifyUntil(models, nil) }
	children["signal handled"] = func(models string) error {
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		return classifyUntil(models, told)
	}
}

// procStatus reads one line of /proc/self/status.
func procStatus(name string) (string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(data), "\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no %s in /proc/self/status", name)
}

func threads() (int, error) {
	value, err := procStatus("Threads")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}

// callers makes calls of one text from n goroutines until stop is called, which
// returns how many there were. Each answer must be right.
func callers(t *testing.T, model *Model, n int) (stop func() int64) {
	t.Helper()
	want := readGolden[[]float32](t, "bert-seq").Cases[0]
	var ended atomic.Bool
	var answers atomic.Int64
	var running sync.WaitGroup
	for range n {
		running.Add(1)
		go func() {
			defer running.Done()
			for !ended.Load() {
				got, err := model.Classify(context.Background(), []string{want.Text}, RunOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				near(t, "probabilities", got.Rows[0].Probabilities, want.Probs)
				answers.Add(1)
			}
		}()
	}
	return func() int64 {
		ended.Store(true)
		running.Wait()
		return answers.Load()
	}
}

// ---- Signals ----------------------------------------------------------------

func TestTheCaughtSignalsAreThoseOfGo(t *testing.T) { runChild(t, "caught signals") }

func caughtSignals(models string) error {
	before := map[string]string{}
	read := func(when string) error {
		for _, name := range []string{"SigCgt", "SigIgn", "SigBlk"} {
			value, err := procStatus(name)
			if err != nil {
				return err
			}
			if known, ok := before[name]; ok && known != value {
				return fmt.Errorf("%s is %s %s, it was %s", name, value, when, known)
			}
			before[name] = value
		}
		return nil
	}
	if err := read("at first"); err != nil {
		return err
	}
	if before["SigCgt"] == strings.Repeat("0", 16) {
		return errors.New("Go catches no signals")
	}
	if _, err := firstCall(filepath.Join(models, "bert-seq"), "model"); err != nil {
		return err
	}
	if err := read("after the start"); err != nil {
		return err
	}
	if err := nativeCleanup(1000); err != nil {
		return err
	}
	return read("after the cleanup")
}

func TestANilDereferenceIsRecoveredUnderLoad(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	stop := callers(t, model, 8)
	for range 1000 {
		recovered := func() (value any) {
			defer func() { value = recover() }()
			var nothing *Row
			return nothing.TokenCount
		}()
		if err, ok := recovered.(error); !ok || !strings.Contains(err.Error(), "nil pointer") {
			t.Fatalf("recovered %v", recovered)
		}
	}
	stop()
}

// classifyUntil makes calls until a signal is told, then leaves with code 7. It says
// when calls are in flight.
func classifyUntil(models string, told <-chan os.Signal) error {
	ctx := context.Background()
	rt, err := Open(ctx, Options{})
	if err != nil {
		return err
	}
	model, err := rt.Load(ctx, filepath.Join(models, "bert-seq"), LoadOptions{})
	if err != nil {
		return err
	}
	failed := make(chan error, 8)
	texts := slowTexts()[:500]
	for range cap(failed) {
		go func() {
			for {
				if _, err := model.Classify(ctx, texts, RunOptions{}); err != nil {
					failed <- err
				}
			}
		}()
	}
	for inFlight := false; !inFlight; time.Sleep(time.Millisecond) {
		stats, err := rt.Stats()
		if err != nil {
			return err
		}
		for _, call := range stats.Calls {
			inFlight = inFlight || call.InFlight == uint64(cap(failed)*len(texts))
		}
	}
	fmt.Println("in flight")
	select {
	case <-told:
		os.Exit(7)
	case err = <-failed:
	}
	return err
}

func TestATerminatedProcessEndsAsGoWants(t *testing.T) {
	for name, ended := range map[string]func(syscall.WaitStatus) bool{
		"signal by default": func(s syscall.WaitStatus) bool {
			return s.Signaled() && s.Signal() == syscall.SIGTERM && !s.CoreDump()
		},
		"signal handled": func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 7 },
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				terminate(t, name, ended)
			}
		})
	}
}

func terminate(t *testing.T, name string, ended func(syscall.WaitStatus) bool) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(modelPath(t, "bert-seq"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program)
	child.Env = []string{childVariable + "=" + name, modelsVariable + "=" + root}
	var complaints bytes.Buffer
	child.Stderr = &complaints
	said, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("in flight\n"))
	if _, err := io.ReadFull(said, line); err != nil {
		t.Errorf("said %q: %v", line, err)
	}
	begin := time.Now()
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = child.Wait() // its error is the status
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	status := child.ProcessState.Sys().(syscall.WaitStatus)
	if !ended(status) || complaints.Len() != 0 {
		t.Errorf("ended with %v\n%s", child.ProcessState, complaints.String())
	}
}

// ---- Profiler ---------------------------------------------------------------

func TestTheProfilerSeesTheCalls(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	// The kernel may leave a short profile empty on a busy machine.
	for seconds := time.Duration(1); ; seconds *= 2 {
		var profile bytes.Buffer
		if err := pprof.StartCPUProfile(&profile); err != nil {
			t.Skipf("another profile is being made: %v", err)
		}
		stop := callers(t, model, 8)
		time.Sleep(seconds * time.Second)
		answers := stop()
		pprof.StopCPUProfile()
		if answers == 0 {
			t.Fatal("no answers while the profiler runs")
		}
		packed, err := gzip.NewReader(&profile)
		if err != nil {
			t.Fatal(err)
		}
		// The names of the functions that were seen lie there as they are.
		names, err := io.ReadAll(packed)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(names, []byte("semantic.nativeClassify")) {
			return
		}
		if seconds > 4 {
			t.Fatalf("%d answers, and no sample of a call in a profile of %d bytes", answers, len(names))
		}
	}
}

// ---- Children and threads ---------------------------------------------------

func TestCommandsRunWhileCallsAreInFlight(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	stop := callers(t, model, 64)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		output, err := exec.CommandContext(ctx, "/bin/sh", "-c", fmt.Sprintf("echo %d; exit 3", i)).Output()
		cancel()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || string(output) != fmt.Sprintf("%d\n", i) {
			t.Fatalf("said %q, %v", output, err)
		}
	}
	if answers := stop(); answers == 0 {
		t.Error("no answers while commands run")
	}
}

func TestABurstOfCallersIsBoundedInThreads(t *testing.T) { runChild(t, "burst") }

// burst makes 2,000 goroutines call at once, and again. A thread that has waited in C
// stays, so the second wave must find those that it needs.
func burst(models string) error {
	const goroutines, maxCalls, spare = 2000, 32, 8 // for Go itself
	ctx := context.Background()
	rt, err := Open(ctx, Options{MaxCalls: maxCalls})
	if err != nil {
		return err
	}
	model, err := rt.Load(ctx, filepath.Join(models, "bert-seq"), LoadOptions{})
	if err != nil {
		return err
	}
	if _, err := model.Classify(ctx, []string{"math"}, RunOptions{}); err != nil {
		return err
	}
	before, err := threads()
	if err != nil {
		return err
	}
	limit := before + maxCalls + spare
	for wave := range 2 {
		begin := make(chan struct{})
		answers := make(chan error, goroutines)
		for range goroutines {
			go func() {
				<-begin
				_, err := model.Classify(ctx, []string{"math"}, RunOptions{})
				answers <- err
			}()
		}
		close(begin)
		most := 0
		for i := range goroutines {
			if err := <-answers; err != nil {
				return err
			}
			if i%10 > 0 {
				continue
			}
			now, err := threads()
			if err != nil {
				return err
			}
			most = max(most, now)
		}
		if most > limit {
			return fmt.Errorf("wave %d: %d threads, %d before both", wave, most, before)
		}
		limit = most + spare
	}
	return rt.Close()
}
