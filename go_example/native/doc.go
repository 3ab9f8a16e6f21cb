// Package native is the contract between a router and the backends that run its
// models. It names no backend's code: a program composes the backends that it wants
// in an [AdapterRegistry] and talks to each of them through [BackendAdapter].
//
//	registry, err := assembly.Assemble(ctx, assembly.Config{})
//	adapter, err := registry.Get(native.BackendLibsemantic)
//	handle, err := adapter.LoadModel(ctx, native.LoadRequest{
//		Path: "models/topics", Capability: native.CapabilitySequenceClassification,
//	})
//	answer, err := adapter.Inference(ctx, handle,
//		native.SequenceClassificationRequest{Texts: []string{"What is a derivative?"}})
//
// # Truth
//
// An adapter advertises what it can do and nothing else; what it cannot do is
// [ErrUnsupported] with the reason. [ModelInfo] says what the backend states of a
// model, not what was asked for: where the backend states nothing, the field is
// empty.
//
// # Errors
//
// What an adapter returns is an [*Error]. Compare it with the errors of this package
// or with those of package context:
//
//	errors.Is(err, native.ErrClosed)
//	errors.Is(err, context.DeadlineExceeded)
//
// The backend's own error lies beneath it, for errors.As.
//
// # Composition
//
// Nothing registers itself: no package of this module has an init function, and
// there is no registry but those that a program makes.
package native
