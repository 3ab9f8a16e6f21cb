package semantic

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestLifetimeReleasesOnceAfterTheLastLeaves(t *testing.T) {
	life := newLifetime()
	for range 2 {
		if !life.enter() {
			t.Fatal("a new lifetime is shut")
		}
	}
	var inside, released atomic.Int32
	inside.Store(2)
	release := func(int64) error {
		if n := inside.Load(); n != 0 {
			t.Errorf("released with %d inside", n)
		}
		released.Add(1)
		return nil
	}
	var enders sync.WaitGroup
	for range 8 {
		enders.Add(1)
		go func() {
			defer enders.Done()
			if err := life.end(context.Background(), release); err != nil {
				t.Error(err)
			}
		}()
	}
	for life.enter() {
		life.leave()
	}
	for range 2 {
		inside.Add(-1)
		life.leave()
	}
	enders.Wait()
	if got := released.Load(); got != 1 {
		t.Fatalf("released %d times", got)
	}
}

func TestLifetimeEndGivesUpWithItsContext(t *testing.T) {
	life := newLifetime()
	life.enter()
	busy := func(timeoutMS int64) error {
		if timeoutMS != 0 {
			t.Errorf("waits %d ms after its context has ended", timeoutMS)
		}
		return newError(ErrDeadline, "busy")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := life.end(ctx, busy); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	cancelled, stop := context.WithCancel(context.Background())
	stop()
	if err := life.end(cancelled, busy); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if life.enter() {
		t.Fatal("open again after an end that gave up")
	}
	life.leave()
	if err := life.end(ctx, func(int64) error { return nil }); err != nil {
		t.Fatalf("the second end: %v", err)
	}
}

func TestLifetimeEndWaitsForOtherUsersOfTheLibrary(t *testing.T) {
	life := newLifetime()
	attempts := 0
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := life.end(ctx, func(timeoutMS int64) error {
		if attempts++; attempts < 3 {
			return newError(ErrDeadline, "busy")
		}
		return newError(ErrClosed, "somebody else has unloaded it")
	})
	if err != nil || attempts != 3 {
		t.Fatalf("%v after %d attempts", err, attempts)
	}
}

func TestLifetimeEndReportsAFailedRelease(t *testing.T) {
	life := newLifetime()
	fault := newError(ErrInternal, "fault")
	err := life.end(context.Background(), func(int64) error { return fault })
	if err != error(fault) {
		t.Fatalf("got %v", err)
	}
	if err := life.end(context.Background(), func(int64) error { return nil }); err != nil {
		t.Fatalf("not tried again: %v", err)
	}
}

func TestMillisecondsRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		time.Nanosecond:                          1,
		time.Millisecond:                         1,
		time.Millisecond + 1:                     2,
		1500 * time.Microsecond:                  2,
		time.Minute:                              60_000,
		-time.Second:                             1,
		24 * time.Hour * 365:                     31_536_000_000,
		time.Duration(1<<63 - 1):                 9_223_372_036_855,
		250*time.Millisecond - 1*time.Nanosecond: 250,
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v: got %d, want %d", d, got, want)
		}
	}
}
