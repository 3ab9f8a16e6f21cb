"""The README shows the very files that the tests run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "program",
    [
        "examples/first.c",
        "examples/first.py",
        "go_example/cmd/first/main.go",
        "go_example/cmd/router/main.go",
    ],
)
def test_program_is_shown_as_it_is(program: str) -> None:
    block = re.search(rf"\({re.escape(program)}\):\n\n```\w+\n(.*?)```\n", README, re.DOTALL)
    assert block is not None
    assert block.group(1) == (ROOT / program).read_text()


def test_links_lead_somewhere() -> None:
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert "include/semantic.h" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_function_is_in_the_table() -> None:
    header = (ROOT / "include" / "semantic.h").read_text()
    declared = set(re.findall(r"^SEMANTIC_API .*?(semantic_\w+)\(", header, re.MULTILINE))
    table = README[README.index("## The API") : README.index("## Models")]
    assert len(declared) == 21
    assert declared - set(re.findall(r"`(semantic_\w+)`", table)) == set()


def test_nothing_is_left_to_be_filled_in() -> None:
    assert re.findall(r"^[A-Z]+$", README, re.MULTILINE) == []
