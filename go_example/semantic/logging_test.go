//go:build cgo

package semantic

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func init() {
	children["logger"] = linesGoToTheLogger
}

func TestLinesGoToTheLogger(t *testing.T) { runChild(t, "logger") }

// A lineHandler sends on what is logged.
type lineHandler chan slog.Record

func (h lineHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h lineHandler) Handle(_ context.Context, r slog.Record) error {
	h <- r
	return nil
}
func (h lineHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h lineHandler) WithGroup(string) slog.Handler      { return h }

func (h lineHandler) expect(level slog.Level, part string) error {
	select {
	case r := <-h:
		if r.Level != level || !strings.Contains(r.Message, part) {
			return fmt.Errorf("%v %q is no %v line with %q", r.Level, r.Message, level, part)
		}
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("no line with %q came", part)
	}
}

func linesGoToTheLogger(models string) error {
	first, second := make(lineHandler, 100), make(lineHandler, 100)
	if err := SetLogger(slog.New(first)); err != nil {
		return err
	}
	ctx := context.Background()
	rt, err := Open(ctx, Options{LogLevel: LogInfo})
	if err != nil {
		return err
	}
	model, err := rt.Load(ctx, filepath.Join(models, "bert-seq"), LoadOptions{Name: "domain"})
	if err != nil {
		return err
	}
	if err := first.expect(slog.LevelInfo, "domain"); err != nil {
		return err
	}
	if err := SetLogger(slog.New(second)); err != nil {
		return err
	}
	if err := model.Close(); err != nil {
		return err
	}
	if err := second.expect(slog.LevelInfo, "domain unloaded"); err != nil {
		return err
	}
	if err := rt.Close(); err != nil {
		return err
	}
	if err := second.expect(slog.LevelInfo, "cleaned up"); err != nil {
		return err
	}
	if len(first) != 0 {
		return fmt.Errorf("the first logger has %d more lines", len(first))
	}
	return SetLogger(nil) // what came to stderr before, runChild would see
}
