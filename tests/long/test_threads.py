"""Many callers of many models take no more threads at a time than there are CPUs, and two."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ..abi.harness import HERE as ABI
from ..abi.harness import clean_environment

MODEL = ABI.parent.parent / "build" / "models" / "minilm"  # of tiny ones no call is in a run
CALLERS = 32
SECONDS = 8
MORE = 2
RARELY = 0.05  # a thread that waits for the interpreter lock looks up now and then

# Calls without end: 32 threads, each of them all four models in turn.
PROGRAM = """
import sys, threading
from libsemantic.engine.config import LoadOptions
from libsemantic.engine.registry import REGISTRY

handles = [REGISTRY.load(sys.argv[2], LoadOptions(name=str(number))) for number in range(4)]
texts = [["the committee may want to look at it again " * count] for count in (1, 2, 5, 12, 40)]

def call(first):
    while True:
        for turn in range(len(handles)):
            place = first + turn
            REGISTRY.embed(handles[place % len(handles)], texts[place % len(texts)])

for number in range(int(sys.argv[1])):
    threading.Thread(target=call, args=(number,), daemon=True).start()
print("calling", flush=True)
sys.stdin.read()
"""


def ready_threads(process: int) -> int:
    """Count the threads that run or are ready to (state R; proc_pid_stat(5))."""
    count = 0
    for stat in Path(f"/proc/{process}/task").glob("*/stat"):
        try:
            count += stat.read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:  # it has ended
            continue
    return count


def test_threads_that_run_stay_within_the_cpus_and_two() -> None:
    command = [sys.executable, "-c", PROGRAM, str(CALLERS), str(MODEL)]
    with subprocess.Popen(
        command,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as callers:
        assert callers.stdout is not None
        assert callers.stdout.readline() == "calling\n"
        seen: Counter[int] = Counter()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            seen[ready_threads(callers.pid)] += 1
            time.sleep(0.005)
        callers.kill()
    most = len(os.sched_getaffinity(0)) + MORE
    above = sum(times for count, times in seen.items() if count > most)
    print(f"ready threads: {dict(sorted(seen.items()))}, {above} of {seen.total()} above {most}")
    assert seen.total() > 100
    assert above <= RARELY * seen.total()
