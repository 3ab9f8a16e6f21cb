"""Processes that end with calls in flight, and processes whose first callers come all at once."""

import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ..abi.binding import MODELS
from ..abi.harness import HERE as ABI
from ..abi.harness import clean_environment, compile_program
from .size import sized

MODEL = MODELS / "bert-seq"
ENDINGS = sized(200, least=4)
STARTS = sized(200, least=2)
SIDE_BY_SIDE = 2
SOON = 2.0
HANG = 60
EXIT_CODE = 7


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("programs") / "ending"
    compile_program(ABI / "ending.c", program)
    return program


def started(*command: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(part) for part in command],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("how", "code", "said", "repeat"),
    [
        ("return", EXIT_CODE, "the end\n", ENDINGS),
        ("exit", EXIT_CODE, "the end\n", ENDINGS),
        ("killed", -signal.SIGTERM, "", ENDINGS),
        ("handled", EXIT_CODE, "the end\n", ENDINGS),
        # The call that the handler has interrupted can never end: it is waited for in vain.
        ("handled-inside", EXIT_CODE, "the end\n", max(2, ENDINGS // 5)),
    ],
)
def test_the_process_ends_as_its_host_wants(
    ending: Path, how: str, code: int, said: str, repeat: int
) -> None:
    took: list[float] = []

    def once(_: int) -> tuple[int, bool, str, str]:
        with started(ending, MODEL, how) as program:
            assert program.stdout is not None
            assert program.stderr is not None
            line = program.stdout.readline()
            if not line:
                return program.wait(HANG), False, "it did not begin", program.stderr.read()
            begun = float(line)
            if how not in ("return", "exit"):
                if how == "handled-inside":
                    time.sleep(0.02)
                begun = time.monotonic()
                program.send_signal(signal.SIGTERM)
            try:
                program.wait(HANG)
            except subprocess.TimeoutExpired:
                program.kill()
            took.append(time.monotonic() - begun)
            # communicate would miss what came together with the first line.
            out, err = program.stdout.read(), program.stderr.read()
            return program.returncode, took[-1] < SOON, out, err

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        seen = Counter(pool.map(once, range(repeat)))
    print(f"{how}: median {sorted(took)[len(took) // 2]:.3f} s, longest {max(took):.3f} s")
    assert seen == {(code, True, said, ""): repeat}


def test_many_first_callers_again_and_again(tmp_path: Path) -> None:
    program = tmp_path / "first_callers"
    compile_program(ABI / "first_callers.c", program)

    def once(_: int) -> tuple[int, str, str]:
        with started(program, MODEL) as run:
            try:
                out, err = run.communicate(timeout=HANG)
            except subprocess.TimeoutExpired:
                run.kill()
                out, err = run.communicate()
            return run.returncode, out, err

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        seen = Counter(pool.map(once, range(STARTS)))
    assert seen == {(0, "", ""): STARTS}
