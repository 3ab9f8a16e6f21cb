"""Everything at once for as long as you like: python -m tests.long.soak [--minutes N].

Every half minute a line says how it goes; an error, or memory that grows beyond the bound of the
long tests, ends it with code 1. SIGINT ends it as the time does, with all counters reconciled.
"""

import argparse
import sys
import threading
import time
from collections.abc import Sequence

from libsemantic.engine.errors import Status
from libsemantic.engine.memory import resident_bytes

from ..abi.binding import Library
from .traffic import Host, Traffic

THREADS = 32
LINE_SECONDS = 30.0
PERIOD = 10  # lines: memory goes up and down with the models that happen to be loaded
MEGABYTE = 1 << 20


def check_memory(resident: Sequence[int]) -> None:
    """Raise if the least of the latest period is above the most of the first one."""
    if len(resident) < 2 * PERIOD:
        return
    first, latest = max(resident[:PERIOD]), min(resident[-PERIOD:])
    if latest > first + max(first * 0.02, 8 * MEGABYTE):
        raise MemoryError(f"{latest} bytes are resident at least, at first {first} at most")


def soak(seed: int, minutes: float) -> None:
    """Run the traffic and watch it; raise what was wrong."""
    library = Library()
    host = Host(library)
    traffic = Traffic(library, THREADS, seed)
    traffic.start()
    ends = time.monotonic() + minutes * 60
    resident: list[int] = []
    try:
        while time.monotonic() < ends and not traffic.errors:
            traffic.watch(min(LINE_SECONDS, ends - time.monotonic()))
            stats = host.stats()
            resident.append(resident_bytes())
            print(
                f"{time.strftime('%H:%M:%S')} seed {seed}: {sum(traffic.calls.values())} calls, "
                f"{resident[-1] / MEGABYTE:.1f} MB resident, {threading.active_count()} threads, "
                f"{stats['results_unfreed']} results unfreed",
                flush=True,
            )
            check_memory(resident)
    except KeyboardInterrupt:
        print("interrupted, coming to an end", flush=True)
    traffic.stop()
    traffic.reconcile()
    assert host.cleanup(30_000) == Status.OK
    assert host.stats()["results_unfreed"] == 0
    print(f"{sum(traffic.calls.values())} calls, all counters reconcile")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="default: for ever")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the clock")
    given = parser.parse_args()
    try:
        soak(given.seed, given.minutes)
    except (AssertionError, MemoryError) as error:
        sys.exit(f"error: {error or 'a check failed'}")
