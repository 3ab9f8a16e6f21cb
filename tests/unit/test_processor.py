"""What is read of the processor."""

from pathlib import Path

import pytest

from libsemantic.engine import processor


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n\n", 255),
        ("processor : 0\nflags\t\t: fpu avx2 avx_vnni\nbugs : x\n", 255),
        ("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_vnni_not\n", 127),
        ("processor : 0\nvmx flags : avx512_vnni\n", 127),
        ("", 127),
    ],
)
def test_steps_follow_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, steps: int
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "cpuinfo")
    assert processor.byte_steps() == steps


def test_a_system_that_does_not_tell_is_taken_as_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "absent")
    assert processor.byte_steps() == 127
