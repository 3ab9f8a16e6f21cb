//go:build cgo

package semantic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Some things can be seen only in a process that has not started the runtime. This
// variable names the child to be; it is set by the tests below.
const childVariable = "SEMANTIC_TEST_CHILD"

var children = map[string]func(models string) error{
	"stats before start": statsBeforeStart,
	"first callers":      firstCallers,
	"leave in flight":    leaveInFlight,
}

func TestMain(m *testing.M) {
	if child := os.Getenv(childVariable); child != "" {
		if err := children[child](os.Getenv(modelsVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild starts this test binary again with no other environment.
func runChild(t *testing.T, name string) {
	t.Helper()
	root := filepath.Dir(modelPath(t, "bert-seq"))
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program)
	child.Env = []string{childVariable + "=" + name, modelsVariable + "=" + root}
	if output, err := child.CombinedOutput(); err != nil || len(output) != 0 {
		t.Fatalf("%v\n%s", err, output)
	}
}

func TestStatsBeforeTheStart(t *testing.T) { runChild(t, "stats before start") }

func statsBeforeStart(string) error {
	s, err := nativeStats()
	if err != nil {
		return err
	}
	if s.Running || len(s.Models)+len(s.Calls)+s.ModelsLoading+s.ModelsReady+s.ModelsStopping != 0 {
		return fmt.Errorf("got %+v", s)
	}
	if err := nativeCancel(5); !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("cancel: %v", err)
	}
	return nativeCleanup(0)
}

func TestFirstCallersAllAtOnce(t *testing.T) {
	for range 3 {
		runChild(t, "first callers")
	}
}

func firstCallers(models string) error {
	const callers = 64
	path := filepath.Join(models, "bert-seq")
	begin := make(chan struct{})
	errs := make(chan error, callers)
	scores := make([]float32, callers)
	var ready sync.WaitGroup
	for g := range callers {
		ready.Add(1)
		go func() {
			ready.Done()
			<-begin
			var err error
			scores[g], err = firstCall(path, fmt.Sprintf("model %d", g%4))
			errs <- err
		}()
	}
	ready.Wait()
	close(begin)
	for range callers {
		if err := <-errs; err != nil {
			return err
		}
	}
	for g, score := range scores {
		// Batches of other sizes may change the last bits.
		if math.Abs(float64(score)-float64(scores[0])) > 1e-5 || score == 0 {
			return fmt.Errorf("caller %d got %v, caller 0 %v", g, score, scores[0])
		}
	}
	rt, err := Open(context.Background(), Options{})
	if err != nil {
		return err
	}
	if models, err := rt.Models(); err != nil || len(models) != 4 {
		return fmt.Errorf("models %+v, %w", models, err)
	}
	return rt.Close()
}

// firstCall opens, loads or finds the model, and classifies one text.
func firstCall(path, name string) (float32, error) {
	ctx := context.Background()
	rt, err := Open(ctx, Options{})
	if err != nil {
		return 0, err
	}
	model, err := rt.Load(ctx, path, LoadOptions{Name: name})
	for errors.Is(err, ErrAlreadyExists) || errors.Is(err, ErrNotReady) {
		time.Sleep(time.Millisecond)
		model, err = rt.Find(name)
	}
	if err != nil {
		return 0, err
	}
	got, err := model.Classify(ctx, []string{"What is the derivative of x squared?"}, RunOptions{})
	if err != nil {
		return 0, err
	}
	return got.Rows[0].Score, nil
}

func TestTheProcessEndsCleanlyWithCallsInFlight(t *testing.T) { runChild(t, "leave in flight") }

func leaveInFlight(models string) error {
	ctx := context.Background()
	rt, err := Open(ctx, Options{})
	if err != nil {
		return err
	}
	model, err := rt.Load(ctx, filepath.Join(models, "bert-seq"), LoadOptions{})
	if err != nil {
		return err
	}
	for range 8 {
		go func() { _, _ = model.Classify(ctx, slowTexts(), RunOptions{}) }()
	}
	time.Sleep(100 * time.Millisecond)
	return nil
}
