// Package semantic classifies, tags and embeds text inside the calling process.
// It is a thin binding to the C library libsemantic.
//
//	rt, err := semantic.Open(ctx, semantic.Options{})
//	model, err := rt.Load(ctx, "models/pii", semantic.LoadOptions{})
//	found, err := model.ClassifyTokens(ctx, []string{"I am Jane Roe"}, semantic.RunOptions{})
//
// # Building
//
// The package needs cgo, the header semantic.h and the library libsemantic.so.
// It asks the linker for -lsemantic and leaves the folders to the environment:
//
//	export CGO_CFLAGS="-I/opt/libsemantic/include"
//	export CGO_LDFLAGS="-L/opt/libsemantic/lib -Wl,-rpath,/opt/libsemantic/lib"
//
// or, where pkg-config knows the library:
//
//	export CGO_CFLAGS="$(pkg-config --cflags semantic)"
//	export CGO_LDFLAGS="$(pkg-config --libs semantic)"
//
// The -rpath lets the program find the library again without LD_LIBRARY_PATH.
// Built with CGO_ENABLED=0 the package compiles, and [Open] returns
// [ErrUnsupported].
//
// # Errors
//
// Every error of this package is an [*Error]. Compare it with the statuses:
//
//	errors.Is(err, semantic.ErrNotFound)
//	errors.Is(err, context.DeadlineExceeded) // the same as semantic.ErrDeadline
//	errors.Is(err, context.Canceled)         // the same as semantic.ErrCancelled
//
// Calls answer row by row. When some rows failed, a call returns its result
// together with an error that is [ErrPartial]: code that looks only at the error
// never takes a failed row for an answer, and code that wants the other rows
// reads them from the result, where [Row.Err] says which ones failed and why.
// With any other error the result is nil.
//
// # Contexts
//
// The deadline of a context bounds a call in the library, while it waits and
// while it runs. Cancelling a context stops the call's work; it then returns
// [ErrCancelled], or [ErrPartial] when some of its rows were done already. A load
// obeys the deadline; cancelled halfway it goes on to its end. [Open] looks at the
// context only before it begins.
//
// # Concurrency
//
// Everything may be called from any number of goroutines. A goroutine that is
// inside the library holds a thread, so at most [Options.MaxCalls] calls of one
// model go in at a time; the others wait in Go, in no particular order.
//
// The process has one runtime. [Open] with equal options returns one more handle
// for it, and closing any of them closes all.
package semantic
