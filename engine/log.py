"""The log: one level, one sink, one line per event; never the user's text."""

import sys
from collections.abc import Callable

from .config import LogLevel

Sink = Callable[[LogLevel, str], None]


def one_line(message: str) -> str:
    """Replace what would break a line or end a C string."""
    return "".join(c if c.isprintable() else " " for c in message)


def _to_stderr(level: LogLevel, message: str) -> None:
    del level
    sys.stderr.write(f"libsemantic: {message}\n")


class Log:
    """Passes lines at or above a level to a sink, by default stderr."""

    def __init__(self) -> None:
        self._level = LogLevel.WARNING
        self._sink: Sink = _to_stderr

    def set_level(self, level: LogLevel) -> None:
        """Set the level; DEFAULT is WARNING."""
        self._level = level or LogLevel.WARNING

    def send_to(self, sink: Sink) -> None:
        """Replace the sink."""
        self._sink = sink

    def error(self, message: str) -> None:
        """Log a fault of this library."""
        self._write(LogLevel.ERROR, message)

    def warning(self, message: str) -> None:
        """Log something odd that does not stop the work."""
        self._write(LogLevel.WARNING, message)

    def info(self, message: str) -> None:
        """Log a rare event, such as a load."""
        self._write(LogLevel.INFO, message)

    def _write(self, level: LogLevel, message: str) -> None:
        if level <= self._level:
            self._sink(level, one_line(message))
