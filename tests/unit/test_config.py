"""Options: their defaults, what they refuse, and the CPUs that a process may use."""

import os
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from libsemantic.engine import config
from libsemantic.engine.config import (
    LoadOptions,
    LogLevel,
    LongText,
    Normalize,
    Output,
    Precision,
    RunOptions,
    RuntimeOptions,
    Shorten,
    Task,
    available_cpus,
)
from libsemantic.engine.errors import InvalidArgumentError

Options = type[RuntimeOptions] | type[LoadOptions] | type[RunOptions]
ALL: tuple[Options, ...] = (RuntimeOptions, LoadOptions, RunOptions)


KEYS = {"cancel_key", "replaces"}  # any number is one


def numbers(options: Options) -> list[str]:
    """Return the fields that hold amounts."""
    return [f.name for f in fields(options) if f.type in ("int", int) and f.name not in KEYS]


def make(options: Callable[..., object], name: str, value: int) -> object:
    return options(**{name: value})


@pytest.mark.parametrize(
    ("options", "name"), [(options, name) for options in ALL for name in numbers(options)]
)
def test_negative_numbers_are_refused(options: Options, name: str) -> None:
    for value in (-1, -(2**63)):
        with pytest.raises(InvalidArgumentError, match=f"{name} is {value}; give 0"):
            make(options, name, value)
    for value in (0, 1, 2**31):
        assert getattr(make(options, name, value), name) == value


def test_every_number_is_covered() -> None:
    assert len(numbers(RuntimeOptions)) == 4
    assert len(numbers(LoadOptions)) == 10
    assert len(numbers(RunOptions)) == 5


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_thresholds_are_probabilities(value: float) -> None:
    assert RunOptions(threshold=value).threshold == value


@pytest.mark.parametrize("value", [-0.001, 1.001, float("nan"), float("inf"), -float("inf")])
def test_other_thresholds_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"threshold is .*; give 0 \(default\) to 1"):
        RunOptions(threshold=value)


@pytest.mark.parametrize("options", ALL)
def test_zero_and_the_empty_text_are_the_defaults(options: Options) -> None:
    defaults = options()
    for field in fields(options):
        value = getattr(defaults, field.name)
        # A prompt is the exception: the empty text means none, None the model's own.
        assert not value, field.name
        assert (value is None) == (field.name == "prompt_name")
    with pytest.raises(FrozenInstanceError):
        setattr(defaults, fields(options)[0].name, 1)
    assert options() == defaults
    assert hash(options()) == hash(defaults)


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        (Task, "AUTO SEQUENCE_CLASSIFICATION TOKEN_CLASSIFICATION EMBEDDING"),
        (Precision, "AUTO FP32 FP16 BF16 INT8"),
        (LongText, "AUTO REFUSE CUT WINDOWS"),
        (Shorten, "AUTO FIRST SECOND"),
        (Output, "ENTITIES TOKENS"),
        (Normalize, "AUTO ON OFF"),
        (LogLevel, "DEFAULT OFF ERROR WARNING INFO DEBUG"),
    ],
)
def test_values_are_never_renumbered(enum: type[IntEnum], names: str) -> None:
    assert [(each.name, each.value) for each in enum] == [
        (name, value) for value, name in enumerate(names.split())
    ]


def test_the_published_defaults() -> None:
    assert config.MAX_ROWS == 65_536
    assert config.DEFAULT_MAX_TEXT_BYTES == 1_048_576
    assert config.DEFAULT_WINDOW_OVERLAP == 128
    assert config.DEFAULT_THRESHOLD == 0.5


def test_plain_numbers_become_members() -> None:
    options: Any = config.RunOptions
    assert options(long_text=2, normalize=1).long_text is config.LongText.CUT
    with pytest.raises(InvalidArgumentError, match="output is 7; it may be 0"):
        options(output=7)


# CPUs

V2 = "/sys/fs/cgroup/cpu.max"
QUOTA = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "cpus", "expected"),
    [
        ({}, 8, 8),
        ({V2: "max 100000\n"}, 8, 8),
        ({V2: "200000 100000\n"}, 8, 2),
        ({V2: "150000 100000\n"}, 8, 2),  # rounded up
        ({V2: "10000 100000\n"}, 8, 1),
        ({V2: "1600000 100000\n"}, 8, 8),  # more than there are
        ({QUOTA: "-1\n", PERIOD: "100000\n"}, 8, 8),
        ({QUOTA: "300000\n", PERIOD: "100000\n"}, 8, 3),
        ({QUOTA: "50000\n", PERIOD: "50000\n"}, 8, 1),
        ({V2: "max 100000\n", QUOTA: "300000\n", PERIOD: "100000\n"}, 8, 3),
        ({V2: "nonsense\n"}, 8, 8),
        ({V2: ""}, 8, 8),
        ({QUOTA: "300000\n"}, 8, 8),
        ({V2: "200000 0\n"}, 8, 8),
    ],
)
def test_cpus_are_the_set_cut_by_the_quota(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int, expected: int
) -> None:
    def read_text(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(str(path))
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    assert available_cpus() == expected


def test_the_real_number_of_cpus_is_sensible() -> None:
    assert 1 <= available_cpus() <= len(os.sched_getaffinity(0))
