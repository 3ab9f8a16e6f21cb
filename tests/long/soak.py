"""Everything at once for as long as you like: python -m tests.long.soak [--minutes N].

Mixed traffic in this process, and in another one the fuzzer, which takes its targets in turn and
goes on from what it found in earlier runs (build/fuzz/corpus). Lines say how it goes; an error, an
input that breaks a promise, or memory that grows beyond the bound of the long tests, ends it with
code 1. SIGINT ends it as the time does, with all counters reconciled.
"""

import argparse
import itertools
import subprocess
import threading
import time
from collections.abc import Sequence

from libsemantic.engine.errors import Status
from libsemantic.engine.memory import resident_bytes

from ..abi.binding import Library
from .fuzz import AVAILABLE, KEPT, UNAVAILABLE, fuzz
from .fuzz_targets import TARGETS
from .traffic import Host, Traffic

THREADS = 32
LINE_SECONDS = 30.0
PERIOD = 10  # lines: memory goes up and down with the models that happen to be loaded
MEGABYTE = 1 << 20
FUZZ_SECONDS = 60
# Beside the traffic an input takes longer, rightly.
FUZZ_FLAGS = (f"-max_total_time={FUZZ_SECONDS}", "-timeout=60", "-report_slow_units=60")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


class Fuzzing(threading.Thread):
    """Fuzzes the targets in turn until it is stopped or finds a fault."""

    def __init__(self, seed: int) -> None:
        super().__init__(name="fuzzing", daemon=True)
        self.fault = ""
        self._seed = seed
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        if not AVAILABLE:
            say(f"nothing is fuzzed: {UNAVAILABLE}")
            return
        try:
            self._fuzz()
        except BaseException as error:
            self.fault = f"the fuzzing ended: {error!r}"

    def _fuzz(self) -> None:
        for seed, target in zip(itertools.count(self._seed), itertools.cycle(TARGETS)):
            corpus = KEPT / "corpus" / target
            corpus.mkdir(parents=True, exist_ok=True)
            outcome = fuzz(
                *(target, f"-seed={seed}", *FUZZ_FLAGS, str(corpus)),
                keep=KEPT,
                started=self._note,
            )
            if self._ended.is_set():
                return
            if outcome.fault:
                self.fault = outcome.fault
                return
            progress = [line for line in outcome.report.splitlines() if " cov: " in line]
            say(f"{target} fuzzed, seed {seed}: {progress[-1] if progress else 'no input'}")

    def stop(self) -> None:
        self._ended.set()
        if self._process is not None:
            self._process.terminate()
        self.join(60)

    def _note(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._ended.is_set():
            process.terminate()


def check_memory(resident: Sequence[int]) -> None:
    """Raise if the least of the latest period is above the most of the first one."""
    if len(resident) < 2 * PERIOD:
        return
    first, latest = max(resident[:PERIOD]), min(resident[-PERIOD:])
    if latest > first + max(first * 0.02, 8 * MEGABYTE):
        raise MemoryError(f"{latest} bytes are resident at least, at first {first} at most")


def soak(seed: int, minutes: float) -> None:
    """Run the traffic and the fuzzer, and watch them; raise what was wrong."""
    library = Library()
    host = Host(library)
    traffic = Traffic(library, THREADS, seed)
    fuzzing = Fuzzing(seed)
    fuzzing.start()
    traffic.start()
    ends = time.monotonic() + minutes * 60
    resident: list[int] = []
    try:
        while time.monotonic() < ends and not traffic.errors and not fuzzing.fault:
            traffic.watch(min(LINE_SECONDS, ends - time.monotonic()))
            stats = host.stats()
            resident.append(resident_bytes())
            say(
                f"traffic, seed {seed}: {sum(traffic.calls.values())} calls, "
                f"{resident[-1] / MEGABYTE:.1f} MB resident, {threading.active_count()} threads, "
                f"{stats['results_unfreed']} results unfreed"
            )
            check_memory(resident)
    except KeyboardInterrupt:
        say("interrupted, coming to an end")
    finally:
        fuzzing.stop()
    traffic.stop()
    traffic.reconcile()
    assert host.cleanup(30_000) == Status.OK
    assert host.stats()["results_unfreed"] == 0
    say(f"{sum(traffic.calls.values())} calls, all counters reconcile")
    if fuzzing.fault:
        raise SystemExit(f"error: {fuzzing.fault}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="default: for ever")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the clock")
    given = parser.parse_args()
    soak(given.seed, given.minutes)
