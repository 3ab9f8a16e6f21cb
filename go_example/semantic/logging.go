package semantic

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

var (
	settingLogger sync.Mutex
	logger        atomic.Pointer[slog.Logger] // of the process, as the library's log is
)

// SetLogger sends the lines of the library's log to l, and with nil to stderr again; it
// returns after the last line for the old one, and lines that still wait go to the new.
// Options.LogLevel says which lines there are. The handler of l runs on a thread of the
// library, one line at a time, and must not call this package; while it is slow, lines
// wait, and beyond 1,024 of them Stats.LogDropped counts.
func SetLogger(l *slog.Logger) error {
	settingLogger.Lock()
	defer settingLogger.Unlock()
	old := logger.Load()
	if l != nil {
		logger.Store(l) // before its first line
	}
	if err := nativeSetLogger(l != nil); err != nil {
		logger.Store(old)
		return err
	}
	logger.Store(l)
	return nil
}
