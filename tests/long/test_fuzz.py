"""Thousands of damaged files and odd calls from a fixed seed; and faults that the fuzzer sees.

More of them: make soak, or python -m tests.long.fuzz TARGET -max_total_time=SECONDS.
"""

import re
from pathlib import Path

import pytest

from . import soak
from .fuzz import AVAILABLE, UNAVAILABLE, fuzz
from .fuzz_targets import CODE, TARGETS
from .size import sized

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=UNAVAILABLE)

RUNS = {
    "weights": sized(10_000, least=500),
    "graphs": sized(6_000, least=500),
    "onnx": sized(8_000, least=500),
    "folders": sized(15_000, least=500),
    "tokenizers": sized(8_000, least=500),
    "calls": sized(4_000, least=500),
}
ENGINE = "from libsemantic.engine.errors import *; "
FAULTS = {
    "raise KeyError(1)": "KeyError: 1",
    f"{ENGINE}raise InternalError('broken')": "InternalError: broken",
    f"{ENGINE}raise BadArtifactError('two' + chr(10) + 'lines')": "a message of several lines",
    f"{ENGINE}raise BadArtifactError('x' * 10_000)": "a message of 10000 characters",
    f"{ENGINE}raise BadArtifactError('')": "an empty message",
    f"{ENGINE}raise BadArtifactError('it says xyzzy')": "a message with the text",
    f"{ENGINE}raise BadArtifactError(chr(0xD800))": "surrogates not allowed",
    "import sys; sys.exit(0)": "SystemExit: 0",
    "import os; os.abort()": "deadly signal",
    "import os; os.kill(os.getpid(), 11)": "deadly signal",
    "import time; time.sleep(60)": "libFuzzer: timeout",
    "while True: pass": "libFuzzer: timeout",
    "bytearray(4 << 30)": "MemoryError",
    "import os; os.write(2, b'it says xyzzy')": "a text was printed",
}


def progress(report: str) -> list[str]:
    """Return the lines of new coverage, without their times."""
    return re.findall(r"^#\d+\t\w+ +cov: \d+ ft: \d+ corp: \d+", report, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_promise(target: str, tmp_path: Path) -> None:
    outcome = fuzz(target, f"-runs={RUNS[target]}", "-seed=1", keep=tmp_path)
    assert not outcome.fault, f"{outcome.fault}\n{outcome.report}"
    done = re.fullmatch(
        r"#(\d+)\tDONE +cov: (\d+) ft: \d+ corp: (\d+)", progress(outcome.report)[-1]
    )
    assert done is not None
    runs, steps, inputs = (int(number) for number in done.groups())
    assert runs >= RUNS[target]
    assert steps > 50  # the library is watched
    assert inputs > len(TARGETS[target].first())  # and what reaches more of it is changed further


@pytest.mark.parametrize(("fault", "said"), FAULTS.items())
def test_the_fuzzer_sees_what_it_is_to_see(fault: str, said: str, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text(fault)
    keep = tmp_path / "kept"
    outcome = fuzz("code", f"-seed_inputs={first}", "-runs=9", "-timeout=1", keep=keep)
    assert said in outcome.report
    (kept,) = (path for path in keep.iterdir() if path.suffix != ".log")
    assert kept.read_text() == fault
    assert f"kept: {kept}\n" in outcome.fault
    assert outcome.fault.endswith(f" -m tests.long.fuzz code {kept}")


def test_a_process_that_vanishes_is_a_fault(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("import os; os._exit(3)")
    arguments = (f"-seed_inputs={first}", "-runs=9")
    outcome = fuzz("code", *arguments, keep=tmp_path)
    assert "a promise is broken, exit status 3" in outcome.fault
    assert outcome.fault.endswith(" ".join((" -m tests.long.fuzz code", *arguments)))


def test_what_ends_well_is_no_fault(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text(f"print('this'); {ENGINE}raise NotFoundError('as it may')")
    outcome = fuzz("code", str(first), keep=tmp_path / "kept")
    assert outcome.fault == ""
    assert f"Executed {first}" in outcome.report


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    first, again, other = (
        progress(fuzz("folders", "-runs=800", f"-seed={seed}", keep=tmp_path).report)
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_soak_ends_with_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "first"
    first.write_text("raise KeyError(1)")
    monkeypatch.setattr(soak, "TARGETS", {"code": CODE})
    monkeypatch.setattr(soak, "KEPT", tmp_path)
    monkeypatch.setattr(soak, "FUZZ_FLAGS", (f"-seed_inputs={first}",))
    monkeypatch.setattr(soak, "LINE_SECONDS", 1)
    with pytest.raises(SystemExit, match="code: a promise is broken"):
        soak.soak(1, minutes=0.5)
