"""Thousands of damaged files and odd calls, the same at each run; and faults that the fuzzer sees.

More of them, from other seeds: python tests/long/fuzz_artifacts.py --minutes N --seed N.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from .fuzz_targets import TARGETS
from .size import sized

DRIVER = Path(__file__).parent / "fuzz_artifacts.py"
RUNS = {
    "weights": sized(15_000, least=500),
    "graphs": sized(2_000, least=100),
    "onnx": sized(10_000, least=500),
    "folders": sized(12_000, least=500),
    "tokenizers": sized(15_000, least=500),
    "calls": sized(10_000, least=500),
}
# A reader with one fault each; inputs are single bytes, mostly.
FAULTY = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from libsemantic.engine.errors import BadArtifactError, InternalError, NotFoundError
from tests.long import fuzz_artifacts as driver
from tests.long.fuzz_calls import SECRET
from tests.long.fuzz_mutations import mutate_bytes

def read(data, folder):
    if data.startswith(b"A"):
        {fault}
    raise NotFoundError("as it may")

first = [b"", b"B", b"A"]
driver.TARGETS["faulty"] = driver.Target(lambda: first, mutate_bytes, read)
driver.CPU_SECONDS, driver.WALL_SECONDS = 0.5, 1.5
sys.exit(driver.main())
"""
FAULTS = {
    "raise KeyError(1)": "KeyError at ",
    "raise InternalError('broken')": "INTERNAL: broken",
    "raise BadArtifactError('two' + chr(10) + 'lines')": "a message of 9 characters",
    "raise BadArtifactError('x' * 10_000)": "a message of 10000 characters",
    "raise BadArtifactError('')": "a message of 0 characters",
    "raise BadArtifactError('it says ' + SECRET)": "a message with the text",
    "sys.exit(0)": "SystemExit at ",
    "os._exit(3)": "the process ended: exit 3",
    "os.abort()": "the process ended: SIGABRT",
    "os.kill(os.getpid(), signal.SIGSEGV)": "the process ended: SIGSEGV",
    "time.sleep(60)": "the process ended: a hang",
    "while True: pass": "the process ended: too much CPU time",
    "bytearray(4 << 30)": "MemoryError at ",
    "sys.stderr.write(SECRET)": "a text was printed",
}


def driven(program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *options],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_promise(target: str, tmp_path: Path) -> None:
    runs = RUNS[target]
    process = driven(
        *(DRIVER, "--target", target, "--runs", str(runs), "--seed", "1", "--keep", str(tmp_path))
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.startswith(f"{target}: {runs} inputs, ")
    assert process.stdout.endswith(" 0 failures\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fault", "said"), FAULTS.items())
def test_the_fuzzer_sees_what_it_is_to_see(fault: str, said: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAULTY.format(root=str(DRIVER.parents[2]), fault=fault))
    kept = tmp_path / "kept"
    process = driven(program, "--target", "faulty", "--runs", "3", "--keep", str(kept))
    assert process.returncode == 1, process.stdout + process.stderr
    assert said in process.stdout
    assert f"{kept}/faulty-1-" in process.stdout
    (file,) = [path for path in kept.iterdir() if path.name == "faulty-1-2" or "print" in said]
    assert file.read_bytes() == (b"xyzzy" if "print" in said else b"A")


def test_a_fuzzer_that_finds_nothing_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAULTY.format(root=str(DRIVER.parents[2]), fault="pass"))
    process = driven(
        program, "--target", "faulty", "--runs", "200", "--keep", str(tmp_path / "kept")
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("faulty: 200 inputs, ")
    assert not (tmp_path / "kept").exists()


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    """Inputs that are found depend on the lines that were reached, so those are the same too."""
    said = [
        driven(DRIVER, "--target", "folders", "--runs", "800", "--keep", str(tmp_path)).stdout
        for _ in range(2)
    ]
    assert said[0] == said[1]
    other = driven(
        *(DRIVER, "--target", "folders", "--runs", "800", "--seed", "2", "--keep", str(tmp_path))
    )
    assert other.stdout != said[0]
