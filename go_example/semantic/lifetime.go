package semantic

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A lifetime counts the calls inside a model or the runtime. Once it ends it lets
// no more in, waits for those inside, and releases what they used.
type lifetime struct {
	mu     sync.Mutex
	inside int
	shut   bool
	empty  chan struct{} // closed when the lifetime is shut and nothing is inside

	turn     chan struct{} // holds one token: whoever has it may release
	released bool          // guarded by turn
}

func newLifetime() *lifetime {
	return &lifetime{empty: make(chan struct{}), turn: make(chan struct{}, 1)}
}

// enter reports whether the caller is inside; it must then call leave.
func (l *lifetime) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return false
	}
	l.inside++
	return true
}

func (l *lifetime) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inside--
	if l.shut && l.inside == 0 {
		close(l.empty)
	}
}

func (l *lifetime) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return
	}
	l.shut = true
	if l.inside == 0 {
		close(l.empty)
	}
}

// end closes the lifetime and calls release until it succeeds, which it does once
// only. When ctx ends first, release is tried without waiting and the error says
// that calls are still in flight; a later end goes on. A nil ctx closes nothing.
func (l *lifetime) end(ctx context.Context, release func(timeoutMS int64) error) error {
	if ctx == nil {
		return contextError(ctx)
	}
	l.close()
	select {
	case l.turn <- struct{}{}:
	default:
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			return stillInFlight(ctx)
		}
	}
	defer func() { <-l.turn }()
	if l.released {
		return nil
	}
	select {
	case <-l.empty:
	case <-ctx.Done():
	}
	for {
		err := release(patience(ctx))
		switch {
		case err == nil || errors.Is(err, ErrClosed):
			l.released = true
			return nil
		case !errors.Is(err, ErrDeadline):
			return err
		case ctx.Err() != nil:
			return stillInFlight(ctx)
		}
	}
}

func stillInFlight(ctx context.Context) error {
	status := ErrCancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		status = ErrDeadline
	}
	return newError(status, "calls are still in flight; call Shutdown again to go on waiting")
}

// patience is how long one attempt to release may wait in the library. The calls
// of this process's Go code have left by then, so only other users of the library
// can make it wait, and looking at ctx again every 50 ms costs nothing.
func patience(ctx context.Context) int64 {
	switch {
	case ctx.Err() != nil:
		return 0
	case ctx.Done() == nil:
		return int64(time.Hour / time.Millisecond)
	}
	wait := 50 * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	return milliseconds(wait)
}

// milliseconds rounds up: 0 would mean "no limit" for calls.
func milliseconds(d time.Duration) int64 {
	n := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		n++
	}
	return max(1, n)
}
