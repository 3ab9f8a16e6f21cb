"""Callers that ask again as soon as they are answered, for libraries that are called from Python.

The callers are not threads: the threads that run the model take the next waiting text themselves.
So what a program of threads would lose in handing texts over is not counted against the library.
Uses the standard library only, since it runs in environments that have nothing of ours.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

# Answers texts by their indices, together in one run: one vector each.
Answer = Callable[[Sequence[int]], list[list[float]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a library is run.

    ``threads`` of one run, which keep processors busy while they wait if they ``spin``; ``runs`` at
    a time; at most ``batch`` texts in a run, the oldest and those that wait nearest to its length.
    """

    threads: int
    spin: bool = False
    runs: int = 1
    batch: int = 1


class Library(Protocol):
    """What is measured."""

    def about(self) -> Mapping[str, str]:
        """Return names and versions."""

    def lengths(self) -> Sequence[int]:
        """Return the tokens of each text."""

    def prepare(self, setting: Setting) -> Answer:
        """Return what answers texts under this setting; opened at the first call only."""


class _Loop:
    """The texts that wait and those still to come, for one run."""

    def __init__(self, order: Sequence[int], callers: int, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._order = iter(order)
        self._left = len(order)
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int]] = []
        self.latencies: list[float] = []
        self._ask(callers)

    def _ask(self, callers: int) -> None:
        now = time.perf_counter()
        for _, text in zip(range(callers), self._order, strict=False):
            self._waiting.append((now, text))

    def take(self, batch: int) -> list[tuple[float, int]]:
        """Wait for the next texts to run together; none once all are answered."""
        with self._changed:
            while not self._waiting:
                if self._left == 0:
                    return []
                self._changed.wait()
            oldest = self._waiting.pop(0)
            length = self._lengths[oldest[1]]
            near = sorted(self._waiting, key=lambda each: abs(self._lengths[each[1]] - length))
            others = near[: batch - 1]
            for each in others:
                self._waiting.remove(each)
            return [oldest, *others]

    def give_up(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._left = 0
            self._waiting.clear()
            self._changed.notify_all()

    def settle(self, taken: Sequence[tuple[float, int]]) -> None:
        """Note the answers; whoever got one asks again."""
        with self._changed:
            now = time.perf_counter()
            self.latencies += [1e3 * (now - asked) for asked, _ in taken]
            self._left -= len(taken)
            self._ask(len(taken))
            self._changed.notify_all()


def run(
    answer: Answer, order: Sequence[int], callers: int, setting: Setting, lengths: Sequence[int]
) -> dict[str, object]:
    """Answer each text of the order once; return the fields of a report."""
    errors: list[BaseException] = []
    cpu, begin = time.process_time(), time.perf_counter()
    loop = _Loop(order, callers, lengths)

    def work() -> None:
        try:
            while taken := loop.take(setting.batch):
                answer([text for _, text in taken])
                loop.settle(taken)
        except BaseException as error:
            errors.append(error)
            loop.give_up()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(setting.runs - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    seconds = time.perf_counter() - begin
    return {
        "callers": callers,
        "answers": len(loop.latencies),
        "errors": 0,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "latencies_ms": loop.latencies,
    }


def serve(library: Library, lines: Iterable[str], out: TextIO) -> None:
    """Say hello and answer each line, a request, with a report; the protocol of the Go program."""

    def say(message: Mapping[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    say({"about": dict(library.about())})
    lengths = library.lengths()
    for line in lines:
        request = json.loads(line)
        setting = Setting(**request["setting"])
        answer = library.prepare(setting)
        order: list[int] = request["order"]
        if request.get("vectors"):
            say({"vectors": [answer([text])[0] for text in order]})
        else:
            say(run(answer, order, int(request["callers"]), setting, lengths))


def main(library: Library) -> None:
    """Serve on standard input and output."""
    serve(library, sys.stdin, sys.stdout)
