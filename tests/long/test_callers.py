"""256 callers of four models that are replaced, unloaded and loaded meanwhile."""

import re
from pathlib import Path

import pytest

from . import callers_soak
from .callers_soak import CALLERS, SoakError, check_memory, soak
from .size import sized

SECONDS = sized(30, least=5)


def test_answers_and_counters_while_models_come_and_go() -> None:
    lines: list[str] = []
    verdict = soak(SECONDS, CALLERS, 1, lines.append)
    print(*lines, verdict, sep="\n")
    done = re.search(
        r"(\d+) right, (\d+) broken, (\d+) late, (\d+) cancelled, (\d+) refused, .*"
        r"; (\d+) loads, (\d+) replaces, (\d+) failed, (\d+) unloads; (\d+) balances",
        lines[-2],
    )
    assert done is not None
    assert all(int(each) > 0 for each in done.groups()), "something never happened"
    assert int(done[1]) > 100 * SECONDS


def test_a_wrong_place_of_models_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_soak, "MODELS", Path("/nowhere"))
    with pytest.raises(SoakError, match=r"code 99: .*NOT_FOUND"):
        soak(1, 2, 1, lambda _: None)


@pytest.mark.parametrize(("says", "words"), [("hang\\n", "does not end"), ("", "not a word")])
def test_a_hang_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, words: str
) -> None:
    source = tmp_path / "hangs.c"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        f'int main(void) {{ fputs("{says}", stdout); fflush(stdout); pause(); }}\n'
    )
    monkeypatch.setattr(callers_soak, "SOURCE", source)
    monkeypatch.setattr(callers_soak, "LATE", 2.0)
    monkeypatch.setattr(callers_soak, "SILENCE", 3.0)
    lines: list[str] = []
    with pytest.raises(SoakError, match=words):
        soak(1, 2, 1, lines.append)
    assert len(lines) == (says == "")


def test_growing_memory_is_a_fault() -> None:
    flat = [900, *[400_000, 404_000] * 20]
    assert check_memory(flat).startswith("392.6 MB in the second fifth")
    check_memory([*flat[:-8], *[410_000] * 8])
    with pytest.raises(SoakError, match="memory grows"):
        check_memory([*flat[:-8], *[411_000] * 8])
    assert "not judged" in check_memory([1, 10_000, 1_000_000])
