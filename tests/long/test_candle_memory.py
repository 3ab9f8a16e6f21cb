"""Memory over many calls of candle's functions, of each verb by itself, and over failures.

SEMANTIC_TEST_CANDLE_CALLS is their number; `make soak` takes 100,000.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from ..abi.binding import BUILD, MODELS
from ..abi.harness import clean_environment
from .test_memory import HERE, LINES, check_steady

CALLS = int(os.environ.get("SEMANTIC_TEST_CANDLE_CALLS", "1000"))
SOURCE = HERE / "candle_steady.c"
WORKS = re.findall(r'^    \{"(\w+)", ', SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("programs") / "candle_steady"
    library = BUILD / "lib"
    command = ["cc", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", str(SOURCE)]
    command += ["-o", str(program), "-I", str(BUILD / "include"), f"-L{library}"]
    command += [f"-Wl,-rpath,{library}", "-lcandle_semantic_router", "-lsemantic"]
    subprocess.run(command, check=True)
    return program


def test_all_works_are_found() -> None:
    assert len(WORKS) == 19


@pytest.mark.parametrize("work", WORKS)
def test_memory_of_candle_calls(steady: Path, work: str) -> None:
    answer = subprocess.run(
        [str(steady), work, str(max(CALLS, LINES)), str(MODELS)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60 + CALLS // 20,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    resident = [int(line) for line in answer.stdout.split()]
    check_steady(resident)
