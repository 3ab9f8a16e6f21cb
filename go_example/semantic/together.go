package semantic

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
)

// A Request is what RunModels asks of one model.
type Request struct {
	Model   *Model
	Options RunOptions
}

// modelRequest is a Request as the library gets it.
type modelRequest struct {
	model   uint64
	options RunOptions
	limits  callLimits
}

// RunModels asks up to 64 models about the same texts; each does its own task:
// Classify, ClassifyTokens or Embed. Texts are tokenised once per distinct tokenizer,
// and the models run side by side. The answers are in the order of the requests.
//
// A request fails alone, with the error in its answer: a closed model, a full queue, a
// RunOptions.CancelKey that was cancelled. The error is ErrPartial then, and unwraps to
// that of the first such request. If every request failed it is the first one's, and
// there are no answers, as where ctx ends before the models are asked.
func RunModels(ctx context.Context, requests []Request, texts []string) ([]Answer, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	answers := make([]Answer, len(requests))
	var open []int // the requests that the library gets
	for i, request := range requests {
		if err := request.enter(); err != nil {
			answers[i].Err = err
			continue
		}
		defer request.Model.leave()
		open = append(open, i)
	}
	keys, forget := cancelKeys(ctx, requests, open)
	defer forget()
	leave, err := enterSlots(ctx, requests, open)
	if err != nil {
		return nil, err
	}
	defer leave()
	timeout, err := timeoutMS(ctx)
	if err != nil {
		return nil, err
	}
	asked := make([]modelRequest, len(open))
	for i, at := range open {
		limits := callLimits{timeoutMS: timeout, cancelKey: keys[i]}
		asked[i] = modelRequest{requests[at].Model.id, requests[at].Options, limits}
	}
	for i, answer := range nativeRunModels(asked, texts) {
		answers[open[i]] = answer
	}
	return joined(answers)
}

// enter keeps the model of the request open until Model.leave.
func (r Request) enter() error {
	if r.Model == nil {
		return newError(ErrInvalidArgument, "a request has no model; give it one")
	}
	return r.Model.enter()
}

// enterSlots waits for a slot of each model, in the order of their IDs: calls that
// wait for more than one cannot wait for each other. The context ends the wait; a
// request's CancelKey ends that request only once all have their slots.
func enterSlots(ctx context.Context, requests []Request, open []int) (func(), error) {
	models := make([]*Model, len(open))
	for i, at := range open {
		models[i] = requests[at].Model
	}
	slices.SortFunc(models, func(a, b *Model) int { return cmp.Compare(a.id, b.id) })
	models = slices.CompactFunc(models, func(a, b *Model) bool { return a.id == b.id })
	for i, m := range models {
		select {
		case m.slots <- struct{}{}:
		case <-ctx.Done():
			leaveSlots(models[:i])
			return nil, contextError(ctx)
		}
	}
	return func() { leaveSlots(models) }, nil
}

func leaveSlots(models []*Model) {
	for _, m := range models {
		<-m.slots
	}
}

// cancelKeys makes the end of ctx, and of each CancelKey, cancel its requests. Those that
// end together carry one key, so that the library may let them share their work; 0 is
// for those that nothing can end. The function it returns must be called after the call.
func cancelKeys(ctx context.Context, requests []Request, open []int) ([]uint64, func()) {
	type origin struct {
		runtime *Runtime
		key     uint64
	}
	var after []func()
	known := map[origin]uint64{}
	keys := make([]uint64, len(open))
	for i, at := range open {
		var from origin
		if key := requests[at].Options.CancelKey; key != 0 {
			from = origin{requests[at].Model.runtime, key}
		}
		key, ok := known[from]
		if !ok {
			ending := ctx
			if from.runtime != nil {
				var forget func()
				ending, forget = from.runtime.withKey(ctx, from.key)
				after = append(after, forget)
			}
			if ending.Done() != nil {
				key = rand.Uint64() | 1
				after = append(after, cancelWith(ending, key))
			}
			known[from] = key
		}
		keys[i] = key
	}
	return keys, func() {
		for i := range after { // what cancels first, for its context ends with the other
			after[len(after)-1-i]()
		}
	}
}

// joined returns the answers and the error of the call that they make up.
func joined(answers []Answer) ([]Answer, error) {
	failed := slices.IndexFunc(answers, func(a Answer) bool { return a.Err != nil })
	if failed < 0 {
		return answers, nil
	}
	if !slices.ContainsFunc(answers, Answer.hasResult) {
		return nil, answers[0].Err
	}
	err := newError(ErrPartial, "request %d: %v", failed, answers[failed].Err)
	err.row = answers[failed].Err
	return answers, err
}

func (a Answer) hasResult() bool {
	return a.Classification != nil || a.TokenClassification != nil || a.Embeddings != nil
}
