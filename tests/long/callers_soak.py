"""Many callers while models come and go: python -m tests.long.callers_soak [--minutes N].

callers.c does it, in a process of its own: 256 threads ask four models of other families and tasks
through the C functions, while these are replaced, unloaded and loaded. It checks each answer
against that of a quiet run and the counters at every look. Here its lines are shown, its memory is
judged, and a hang is shown with all stacks. The last line is the verdict; the code is 0 or 1.
"""

import argparse
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..abi.binding import MODELS
from ..abi.harness import clean_environment, compile_program

CALLERS = 256
MINUTES = 10.0
SOURCE = Path(__file__).parent / "callers.c"
LATE = 30.0  # seconds without a line after which all stacks are shown
SILENCE = 150.0  # and after which the process hangs
# Else glibc keeps freed blocks of each size in each thread, 60 MB once 256 have met all sizes.
NO_CACHE = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
JUDGED = 30  # lines
MEGABYTE = 1024  # in kilobytes
ARENA = 64 << 20

Say = Callable[[str], None]


class SoakError(Exception):
    """The run showed a fault; the message says which."""


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def outside_heap(process: int) -> int:
    """Return the resident kilobytes of anonymous memory that is no arena of the C heap.

    That is memory which Python, ONNX Runtime and large blocks have mapped, and stacks. An arena
    begins at a multiple of 64 MiB and is no larger (malloc/arena.c of glibc).
    """
    total, counts = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)", line):
            start, end = int(place[1], 16), int(place[2], 16)
            counts = not place[3] and not (start % ARENA == 0 and end - start <= ARENA)
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def check_memory(held: Sequence[int]) -> str:
    """Compare the last fifth of the lines with the second one, as soon as models come and go.

    Held is what is allocated of the C heap and all memory outside, without what glibc keeps of
    freed pieces in the arenas of 256 threads. Return what was found, in words; raise SoakError if
    it is above by 2 % and 8 MB. It takes minutes until each of the callers has led a run of each
    model: fewer lines are not judged.
    """
    if len(held) < JUDGED:
        return "memory not judged in so short a time"
    fifth = len(held) // 5
    early, late = held[fifth : 2 * fifth], held[-fifth:]
    before, after = sum(early) / len(early), sum(late) / len(late)
    words = f"{before / MEGABYTE:.1f} MB in the second fifth, {after / MEGABYTE:.1f} in the last"
    if after > before + max(before * 0.02, 8 * MEGABYTE):
        raise SoakError(f"memory grows: {words}")
    return words


def stacks_of(process: int) -> str:
    """Return where the Python code of each thread stands."""
    spy = Path(sys.executable).parent / "py-spy"
    command = [str(spy), "dump", "--nonblocking", "--pid", str(process)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


def lines_of(process: subprocess.Popen[str], say: Say) -> Iterator[str]:
    """Yield the lines of the process as they come; raise SoakError if none comes any more."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=LATE)
        except queue.Empty:
            say(f"not a word for {LATE:.0f} s\n{stacks_of(process.pid)}")
            try:
                line = lines.get(timeout=SILENCE - LATE)
            except queue.Empty:
                raise SoakError(
                    f"hang: not a word for {SILENCE:.0f} s\n{stacks_of(process.pid)}"
                ) from None
        if not line:
            return
        if line == "hang":
            raise SoakError(f"hang: a call does not end\n{stacks_of(process.pid)}")
        yield line


def soak(seconds: float, callers: int, seed: int, say: Say) -> str:
    """Let the callers ask for so long; return the verdict. Raises SoakError for any fault."""
    held: list[int] = []
    last = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "callers"
        compile_program(SOURCE, program, libraries=("m",))
        arguments = (str(seconds), str(callers), str(seed), str(MODELS))
        with (
            (folder / "errors").open("w+") as errors,
            subprocess.Popen(
                [program, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean_environment(**NO_CACHE),
            ) as process,
        ):
            try:
                for last in lines_of(process, say):
                    say(last)
                    if found := re.search(r"(\d+) kB used", last):
                        held.append(int(found[1]) + outside_heap(process.pid))
                code = process.wait(60)
            except SoakError as error:
                errors.seek(0)
                raise SoakError(f"{error}\n{errors.read()}") from None
            finally:
                process.kill()
            errors.seek(0)
            said = errors.read().strip()
    if code != 0 or not last.startswith("reconciled"):
        raise SoakError(f"code {code}: {said or last}")
    return f"{last}, {check_memory(held)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"default {MINUTES:g}")
    parser.add_argument("--callers", type=int, default=CALLERS, help=f"default {CALLERS}")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the clock")
    given = parser.parse_args()
    say(f"{given.callers} callers of 4 models for {given.minutes:g} minutes, seed {given.seed}")
    try:
        verdict = soak(given.minutes * 60, given.callers, given.seed, say)
    except SoakError as error:
        say(f"FAILED: {error}")
        raise SystemExit(1) from None
    say(f"PASSED: {verdict}")


if __name__ == "__main__":
    main()
