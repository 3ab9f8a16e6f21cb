"""Run the fuzzer on one target: python -m tests.long.fuzz TARGET [FLAG]... [INPUT]...

FLAG is one of libFuzzer's (-runs=N, -max_total_time=SECONDS, -seed=N); with INPUT, a kept file,
only that is read again. What broke a promise is named, with the input where one was kept, and the
exit status is 1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "build" / "fuzz"
AVAILABLE: Final = find_spec("atheris") is not None
UNAVAILABLE: Final = "there is no wheel of atheris, the fuzzer, for this platform"
LAST_LINES: Final = 40  # of a report that go to the terminal
# What libFuzzer, atheris and Python end with after an interrupt.
NO_FAULT: Final = (0, 72, 130, -signal.SIGINT, -signal.SIGTERM)
FLAGS: Final = (
    "-timeout=10",  # seconds of one input
    "-rss_limit_mb=2048",
    "-max_len=262144",  # what is longer takes longer to read, rightly
    "-len_control=0",  # the first inputs are as long as they are
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of the fuzzer ended: "" or the fault, and the report that it wrote."""

    fault: str
    report: str


def fuzz(
    target: str,
    *arguments: str,
    keep: Path = KEPT,
    started: Callable[[subprocess.Popen[bytes]], object] | None = None,
) -> Outcome:
    """Run a target to its end in a process of its own, which ``started`` is given.

    The report is kept as ``keep``/TARGET.log, an input that broke a promise beside it. None is
    kept where a process ends behind libFuzzer's back, by _exit or SIGKILL: the same seed leads
    there again, except for calls, whose coverage depends on how the library's threads run.
    """
    keep.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # each input is a file or more
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as place,
        (keep / f"{target}.log").open("w+b") as report,  # the process reads in it
    ):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.long.fuzz_process", target),
                *(*FLAGS, f"-artifact_prefix={keep}/{target}-", *arguments),
            ],
            cwd=ROOT,
            stdout=report,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {"TMPDIR": place, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
            | {"RUST_BACKTRACE": "0"},
        )
        if started is not None:
            started(process)
        status = process.wait()
        report.seek(0)
        text = report.read().decode("utf-8", "replace")
    kept = re.findall(r"Test unit written to (.+)", text)
    if status in NO_FAULT and not kept:
        return Outcome("", text)
    again = " ".join((sys.executable, "-m tests.long.fuzz", target, *(kept or arguments)))
    lines = [f"{target}: a promise is broken, exit status {status}", f"report: {report.name}"]
    lines += [f"kept: {path}" for path in kept]
    return Outcome("\n".join((*lines, f"again: {again}")), text)


def main() -> int:
    """Run the target on the command line and print the end of its report."""
    if not AVAILABLE or len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.stderr.write(f"{__doc__ if AVAILABLE else UNAVAILABLE}\n")
        return 2
    outcome = fuzz(*sys.argv[1:])
    lines = [*outcome.report.splitlines()[-LAST_LINES:], *outcome.fault.splitlines()]
    sys.stdout.write("\n".join(lines) + "\n")
    return bool(outcome.fault)


if __name__ == "__main__":
    sys.exit(main())
