"""Feed damaged model files and odd calls to their readers, guided by the lines they reach.

usage: fuzz_artifacts.py [--target NAME]... [--runs N | --minutes N] [--seed N] [--keep FOLDER]

Each target runs in a process of its own, one input after the other. The same seed makes the same
inputs. An input that takes steps between lines of the engine not seen before, or fails in a new
way, is changed further. What breaks a promise is kept in a folder and named, and the exit status
is 1: an exception that is no error of the engine or is INTERNAL, a process that ends, an input
that takes more than 2 seconds of CPU time or 2 GiB of memory, a text that shows up in the output.
"""

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from libsemantic.engine import errors  # noqa: E402
from tests.long.fuzz_calls import SECRET  # noqa: E402
from tests.long.fuzz_targets import TARGETS, Target  # noqa: E402

Step: TypeAlias = Callable[[FrameType, str, object], "Step | None"]

CPU_SECONDS: Final = 2.0
WALL_SECONDS: Final = 30.0  # for what waits rather than computes
MEMORY_BYTES: Final = 2 << 30
LONGEST_INPUT: Final = 1 << 18  # in bytes; what is longer takes longer to read, rightly
LONGEST_MESSAGE: Final = 6000  # a path may have 4096 bytes
MOST_FAILURES: Final = 20  # of one target; then it is time to look
DEFAULT_RUNS: Final = 5000


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that broke a promise: its number, and how."""

    number: int
    fault: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a process of one target did before it ended."""

    runs: int
    kept: int
    refused: int


class Coverage:
    """The steps from line to line of the library that were taken so far."""

    def __init__(self) -> None:
        self._folder = str(Path(errors.__file__).parents[1])
        self._steps: set[tuple[CodeType, int, int]] = set()
        self._outcomes: set[str] = set()
        self._grew = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Step | None:
        """Follow a new frame if its code is the library's."""
        del event, argument
        code, last = frame.f_code, 0
        if not code.co_filename.startswith(self._folder):
            return None

        def step(frame: FrameType, event: str, argument: object) -> Step | None:
            nonlocal last
            del argument
            if event == "line":
                taken = (code, last, frame.f_lineno)
                last = frame.f_lineno
                if taken not in self._steps:
                    self._steps.add(taken)
                    self._grew = True
            return step

        return step

    def note(self, outcome: str) -> None:
        """Note how an input ended; numbers, and what a message quotes, make no new way."""
        plain = re.sub(r"[0-9]+|['\"`].*", "", outcome, flags=re.DOTALL)[:200]
        self._grew = self._grew or plain not in self._outcomes
        self._outcomes.add(plain)

    def grew(self) -> bool:
        """Tell whether anything was new since the last question."""
        grew, self._grew = self._grew, False
        return grew


def work(target: Target, folder: Path, seed: int, first: int, runs: int, seconds: float) -> None:
    """Run inputs ``first`` to ``runs`` and report failures, line by line, to stdout.

    ``folder`` holds what passes on to the next process if this one ends: the input under way
    (``current``) and the inputs that are worth changing (``found``).
    """
    found = folder / "found"
    found.mkdir(exist_ok=True)
    seeds = target.first()
    corpus = [*seeds, *(path.read_bytes() for path in sorted(found.iterdir()))]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    coverage, ways = Coverage(), set[str]()
    deadline = time.monotonic() + seconds
    number, kept, refused = first, 0, 0
    while number < runs and time.monotonic() < deadline and len(ways) < MOST_FAILURES:
        rng = Random(f"{seed} {number}")
        if number < len(seeds):
            data = seeds[number]
        else:
            data = rng.choice(rng.choice((seeds, corpus)))
            data = target.mutate(data, rng.choice(corpus), rng)[:LONGEST_INPUT]
        (folder / "current").write_bytes(b"%d\n" % number + data)
        outcome, fault = _run(target, data, coverage)
        refused += bool(outcome)
        coverage.note(outcome)
        if coverage.grew():
            kept += 1
            corpus.append(data)
            (found / f"{number:09}").write_bytes(data)
        if fault and (way := re.sub(r"[0-9]+", "", fault)[:60]) not in ways:
            ways.add(way)
            _say(json.dumps(asdict(Failure(number, fault))))
            (folder / f"failed-{number}").write_bytes(data)
        number += 1
    _say(json.dumps(asdict(Report(number - first, kept, refused))))


def _run(target: Target, data: bytes, coverage: Coverage) -> tuple[str, str]:
    """Return what the reader raised, "" for nothing, and how that breaks a promise."""
    with tempfile.TemporaryDirectory() as place:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        sys.settrace(coverage)
        try:
            target.read(data, Path(place))
        except errors.SemanticError as error:
            outcome = f"{type(error).__name__}: {error.message.replace(place, '')}"
            return outcome, _fault_of(error).replace(place, "")
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " ← ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
            return f"{type(error).__name__} at {places}", f"{type(error).__name__} at {places}"
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    return "", ""


def _fault_of(error: errors.SemanticError) -> str:
    message = error.message
    try:
        message.encode()
    except UnicodeEncodeError:
        return f"a message that is not Unicode: {message[:200]!r}"
    if isinstance(error, errors.InternalError):
        return f"INTERNAL: {message[:200]}"
    if not message or len(message) > LONGEST_MESSAGE or "\n" in message:
        return f"a message of {len(message)} characters: {message[:200]!r}"
    return f"a message with the text: {message!r}" if SECRET in message else ""


def fuzz(name: str, seed: int, runs: int, seconds: float, keep: Path) -> list[str]:
    """Run one target to the end, in as many processes as it takes; return what failed."""
    failures: list[str] = []
    deadline = time.monotonic() + seconds
    next_run = done = 0
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as place:
        folder = Path(place)
        while next_run < runs and len(failures) < MOST_FAILURES:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            command = [sys.executable, sys.argv[0], "--work", name, "--folder", place]
            command += ["--seed", str(seed), "--first", str(next_run), "--runs", str(runs)]
            command += ["--seconds", str(left)]
            with (folder / "stderr").open("wb") as stderr:
                process = subprocess.run(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=os.environ | {"RUST_BACKTRACE": "0"},
                    check=False,
                    text=True,
                )
            printed = (folder / "stderr").read_bytes()
            for line in process.stdout.splitlines():
                entry = json.loads(line)
                if "fault" in entry:
                    data = (folder / f"failed-{entry['number']}").read_bytes()
                    failures.append(_keep(keep, name, seed, entry["number"], data, entry["fault"]))
                else:
                    done += entry["runs"]
                    next_run += entry["runs"]
            if SECRET.encode() in printed:
                failures.append(_keep(keep, name, seed, next_run, printed, "a text was printed"))
            if process.returncode:
                number, _, data = (folder / "current").read_bytes().partition(b"\n")
                next_run = int(number) + 1
                fault = _ending(process.returncode, printed)
                failures.append(_keep(keep, name, seed, int(number), data, fault))
        found = len(list((folder / "found").iterdir()))
    _say(f"{name}: {next_run} inputs, {found} worth changing, {len(failures)} failures")
    return failures


def _ending(status: int, printed: bytes) -> str:
    """Say how a process ended that should not have."""
    known = {signal.SIGPROF: "too much CPU time", signal.SIGALRM: "a hang"}
    how = f"exit {status}"
    if status < 0:
        number = signal.Signals(-status)
        how = known.get(number, number.name)
    last = printed.decode("utf-8", "replace").strip().splitlines()[-3:]
    return f"the process ended: {how}; {' | '.join(last)[:500]}"


def _keep(folder: Path, name: str, seed: int, number: int, data: bytes, fault: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}-{number}"
    path.write_bytes(data)
    _say(f"{path}: {fault}")
    return f"{path}: {fault}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Fuzz the targets one after the other; with ``--work`` be the process of one."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of model files and of calls.")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    parser.add_argument("--runs", type=int, default=0, help=f"default {DEFAULT_RUNS} a target")
    parser.add_argument("--minutes", type=float, default=0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--replay", type=Path, help="run one kept input of a target")
    for name, kind in (("work", str), ("folder", Path), ("first", int), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if Path("/dev/shm").is_dir():  # each input is a file: spare the disk
        tempfile.tempdir = "/dev/shm"
    if options.work:
        work(
            TARGETS[options.work],
            options.folder,
            options.seed,
            options.first,
            options.runs,
            options.seconds,
        )
        return 0
    names = options.target or list(TARGETS)
    if options.replay:
        outcome, fault = _run(TARGETS[names[0]], options.replay.read_bytes(), Coverage())
        _say(f"{outcome or 'read'}; {fault or 'no fault'}")
        return bool(fault)
    runs = options.runs or (sys.maxsize if options.minutes else DEFAULT_RUNS)
    seconds = 60 * options.minutes / len(names) if options.minutes else 1e9
    failures = [f for name in names for f in fuzz(name, options.seed, runs, seconds, options.keep)]
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
