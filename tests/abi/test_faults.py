"""Faults of the engine and of the start become statuses; the boundary lets nothing through."""

import json
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from libsemantic.engine.errors import Status
from libsemantic.ffi.candle.table import FREE, PLAIN, ROWS
from libsemantic.ffi.generate import PLAIN_C

from .binding import FUNCTIONS, GOOD, ROOT, WITH_A_RESULT
from .harness import run

FORWARDED = {name for name in FUNCTIONS if name not in PLAIN_C}
RAISED = {
    *("RuntimeError", "KeyError", "MemoryError", "SystemExit", "KeyboardInterrupt"),
    *("GeneratorExit", "RecursionError"),
}
RETURNED = {"None", "object", "text", "-1", "99", "2**70", "0"}
WITH_A_HANDLE = {"semantic_load_model", "semantic_find_model"}


class Answer(TypedDict):
    name: str
    status: str
    message: str | None
    empty: bool
    then: str


def host(tmp_path: Path, mode: str) -> tuple[dict[str, object], str]:
    """Run the fault host; return its report and what stood on stderr. stdout stays empty."""
    report = tmp_path / "report.json"
    answer = run(sys.executable, "-m", "tests.abi.fault_host", mode, report, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == ""
    return json.loads(report.read_text()), answer.stderr


def answers_of(report: dict[str, object]) -> dict[str, list[Answer]]:
    """Return the answers by fault; each call that followed was right, and nothing leaked."""
    answers: dict[str, list[Answer]] = json.loads(json.dumps(report["answers"]))
    assert set(answers) == RAISED | RETURNED
    assert report["unfreed"] == 0
    for each in answers.values():
        assert {answer["name"] for answer in each} == FORWARDED
        for answer in each:
            good = GOOD[answer["name"]]
            assert isinstance(good, Status)
            assert answer["then"] == good.name
            message = answer["message"]
            assert message is None or "the user's text" not in message
            assert answer["empty"] or answer["status"] == "OK"
    return answers


def check_raised(answers: dict[str, list[Answer]], *, inside: str) -> None:
    """``inside`` is the function whose own error value is answered when it raises."""
    for fault in RAISED:
        for answer in answers[fault]:
            expected = "OUT_OF_MEMORY" if fault == "MemoryError" else "INTERNAL"
            if answer["name"] == inside:
                expected = "INTERNAL"
            assert answer["status"] == expected, (fault, answer)
            if answer["message"] is not None:
                told = "refused memory" if fault == "MemoryError" else f"internal fault: {fault} in"
                assert told in answer["message"]


def test_whatever_the_registry_raises_or_returns(tmp_path: Path) -> None:
    report, errors = host(tmp_path, "registry_fails")
    answers = answers_of(report)
    check_raised(answers, inside="")
    for fault in RETURNED:
        for answer in answers[fault]:
            wrong = answer["name"] in WITH_A_RESULT or (
                answer["name"] in WITH_A_HANDLE and fault != "99"
            )
            if wrong:
                assert answer["status"] == "INTERNAL", (fault, answer)
            else:  # what these return has no meaning
                assert answer["status"] in ("OK", "NOT_FOUND"), (fault, answer)
    assert errors == ""


def test_whatever_an_entry_raises_or_returns(tmp_path: Path) -> None:
    report, errors = host(tmp_path, "entries_fail")
    answers = answers_of(report)
    # semantic_cancel has no error to fill, so nothing of ours stands around it.
    check_raised(answers, inside="semantic_cancel")
    told = {
        **dict.fromkeys(("None", "object", "text", "2**70"), "was not answered"),
        **dict.fromkeys(("-1", "99"), "unknown status"),
    }
    for fault, message in told.items():
        for answer in answers[fault]:
            assert answer["status"] == "INTERNAL", (fault, answer)
            assert answer["message"] is None or message in answer["message"]
    for answer in answers["0"]:
        wrong = answer["name"] in {*WITH_A_RESULT, *WITH_A_HANDLE}
        assert answer["status"] == ("INTERNAL" if wrong else "OK")
        kind = "a handle" if answer["name"] in WITH_A_HANDLE else "a result"
        assert not wrong or f"without {kind}" in str(answer["message"])
    # One line each for what no status could carry.
    lines = errors.splitlines()
    assert set(lines) == {
        f"libsemantic: a call failed outside its guard: {kind}"
        for kind in RAISED | {"TypeError", "OverflowError"}
    }
    assert lines.count("libsemantic: a call failed outside its guard: TypeError") == 3 * len(
        FORWARDED
    )


def test_a_result_whose_entry_fails_late_is_freed(tmp_path: Path) -> None:
    report, errors = host(tmp_path, "entries_fail_late")
    answers: list[Answer] = json.loads(json.dumps(report["answers"]))
    assert len(answers) == 10
    assert {(answer["status"], answer["empty"]) for answer in answers} == {("INTERNAL", True)}
    assert report["unfreed"] == 0
    assert errors == ""


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("one_is_missing", "differ in ['py_semantic_embed']; rebuild the library"),
        ("one_too_many", "differ in ['py_semantic_dream']; rebuild the library"),
        ("the_start_fails", "ModuleNotFoundError: import of libsemantic.ffi.bootstrap"),
        ("the_start_exits", "SystemExit: 0"),
    ],
)
def test_a_start_that_fails_is_answered_by_every_function(
    tmp_path: Path, mode: str, reason: str
) -> None:
    report, errors = host(tmp_path, mode)
    answers: list[Answer] = json.loads(json.dumps(report["answers"]))
    assert len(answers) == len(FORWARDED)
    for answer in answers:
        assert answer["status"] == "INTERPRETER", answer
        assert answer["empty"]
        if answer["message"] is not None:
            assert answer["message"].startswith(f"the Python side cannot start in {sys.prefix}: ")
            assert reason in answer["message"]
    assert errors == ""


def test_each_function_is_attached_once(tmp_path: Path) -> None:
    report, errors = host(tmp_path, "composition")
    assert report == {
        "starts": 1,
        "attached": dict.fromkeys(
            [
                *(f"py_{name}" for name in FORWARDED),
                *(f"py_candle_{row.function}" for row in ROWS if row.verb not in (FREE, PLAIN)),
                "py_cancel_everything",
            ],
            1,
        ),
    }
    assert errors == ""
