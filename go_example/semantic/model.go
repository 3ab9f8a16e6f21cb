package semantic

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A Model is a loaded model. Runtime.Load and Runtime.Find return it.
type Model struct {
	runtime *Runtime
	id      uint64
	life    *lifetime
	slots   chan struct{} // one token per call inside the library
}

// ID is the number of the model in ModelEntry and CallStats. It is never reused.
func (m *Model) ID() uint64 { return m.id }

// Info describes the model.
func (m *Model) Info() (*Info, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	return nativeInfo(m.id)
}

// Classify answers each text with one of the model's labels, or several where
// Classification.MultiLabel is true.
func (m *Model) Classify(
	ctx context.Context, texts []string, options RunOptions,
) (*Classification, error) {
	return run(ctx, m, options, func(limits callLimits) (*Classification, error) {
		return nativeClassify(m.id, texts, options, limits)
	})
}

// ClassifyPairs does the same for the pairs left[i], right[i]: natural language
// inference, reranking, any cross-encoder. Every sequence classifier answers both.
func (m *Model) ClassifyPairs(
	ctx context.Context, left, right []string, options RunOptions,
) (*Classification, error) {
	if err := samePairs(left, right); err != nil {
		return nil, err
	}
	return run(ctx, m, options, func(limits callLimits) (*Classification, error) {
		return nativeClassifyPairs(m.id, left, right, options, limits)
	})
}

// ClassifyTokens finds entities in each text, or labels its tokens with
// OutputTokens. Offsets are bytes: texts[i][span.Start:span.End] is the entity.
func (m *Model) ClassifyTokens(
	ctx context.Context, texts []string, options RunOptions,
) (*TokenClassification, error) {
	return run(ctx, m, options, func(limits callLimits) (*TokenClassification, error) {
		return nativeClassifyTokens(m.id, texts, options, limits)
	})
}

// ClassifyTokenPairs labels the parts of answers[i] given contexts[i], as
// hallucination detectors do. Offsets are those of the answer.
func (m *Model) ClassifyTokenPairs(
	ctx context.Context, contexts, answers []string, options RunOptions,
) (*TokenClassification, error) {
	if err := samePairs(contexts, answers); err != nil {
		return nil, err
	}
	return run(ctx, m, options, func(limits callLimits) (*TokenClassification, error) {
		return nativeClassifyTokenPairs(m.id, contexts, answers, options, limits)
	})
}

// Embed turns each text into a vector. A dimension below the full one is cut first
// and then brought to unit length again.
func (m *Model) Embed(
	ctx context.Context, texts []string, options RunOptions,
) (*Embeddings, error) {
	return run(ctx, m, options, func(limits callLimits) (*Embeddings, error) {
		return nativeEmbed(m.id, texts, options, limits)
	})
}

// CountTokens counts tokens and cuts windows exactly as a call with these options
// would. The model does not run.
func (m *Model) CountTokens(
	ctx context.Context, texts []string, options RunOptions,
) (*TokenCounts, error) {
	return run(ctx, m, options, func(limits callLimits) (*TokenCounts, error) {
		return nativeCountTokens(m.id, texts, options, limits)
	})
}

// Close refuses new calls with ErrClosed, waits for those in flight and frees the
// model. Closing again does nothing.
func (m *Model) Close() error {
	return m.Shutdown(context.Background())
}

// Shutdown is Close, but it waits only until ctx ends. It then returns ErrDeadline
// or ErrCancelled; new calls stay refused, and calling it again goes on waiting.
func (m *Model) Shutdown(ctx context.Context) error {
	return m.life.end(ctx, func(timeoutMS int64) error {
		if !m.runtime.life.enter() {
			return closedError("runtime") // which frees its models by itself
		}
		defer m.runtime.life.leave()
		err := nativeUnload(m.id, timeoutMS)
		if err == nil || errors.Is(err, ErrClosed) {
			m.runtime.forget(m.id)
		}
		return err
	})
}

// enter keeps the model and the runtime open until leave.
func (m *Model) enter() error {
	if !m.runtime.life.enter() {
		return closedError("runtime")
	}
	if !m.life.enter() {
		m.runtime.life.leave()
		return closedError("model")
	}
	return nil
}

func (m *Model) leave() {
	m.life.leave()
	m.runtime.life.leave()
}

// callLimits are what the library learns of a context.
type callLimits struct {
	timeoutMS int64  // 0: none
	cancelKey uint64 // 0: none
}

// run makes one call: it keeps the model open, waits for a slot, and hands the
// deadline and the cancellation of ctx on to the library.
func run[Result any](
	ctx context.Context, m *Model, options RunOptions, call func(callLimits) (*Result, error),
) (*Result, error) {
	if ctx == nil {
		return nil, contextError(ctx)
	}
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	if options.CancelKey != 0 {
		var forget func()
		ctx, forget = m.runtime.withKey(ctx, options.CancelKey)
		defer forget()
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
	timeout, err := timeoutMS(ctx)
	if err != nil {
		return nil, err
	}
	limits := callLimits{timeoutMS: timeout}
	if ctx.Done() != nil {
		// A random number needs no counter that all users of the library share.
		limits.cancelKey = rand.Uint64() | 1
		defer cancelWith(ctx, limits.cancelKey)()
	}
	return call(limits)
}

// cancelWith makes the end of ctx cancel the work that carries the key. The
// function it returns must be called after the work.
func cancelWith(ctx context.Context, key uint64) func() {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if _, ok := ctx.Deadline(); ok && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return // the library has the deadline too and answers DEADLINE
		}
		// The call may not have reached the library yet: try until it has, or ended.
		for wait := time.Millisecond; nativeCancel(key) != nil; wait = min(2*wait, time.Second) {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
		}
	})
	return func() {
		stop()
		close(done)
	}
}

// timeoutMS returns the time that is left in ctx, 0 where it has no deadline.
func timeoutMS(ctx context.Context) (int64, error) {
	if err := contextError(ctx); err != nil {
		return 0, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, nil
	}
	left := time.Until(deadline)
	if left <= 0 {
		return 0, newError(ErrDeadline, "the deadline of the context has passed")
	}
	return milliseconds(left), nil
}

func samePairs(left, right []string) error {
	if len(left) != len(right) {
		return newError(ErrInvalidArgument,
			"%d first parts and %d second parts; give as many of one as of the other",
			len(left), len(right))
	}
	return nil
}
