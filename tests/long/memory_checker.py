"""A program under valgrind, and what it finds that our own code did."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path


def checked_by(report: Path) -> tuple[str, ...]:
    """Return the command that comes before a program's own and writes ``report``."""
    return (
        *("valgrind", "--leak-check=full", "--show-leak-kinds=definite", "--fair-sched=try"),
        *("--num-callers=60", "--xml=yes", f"--xml-file={report}"),
    )


def own_faults(
    report: Path, sources: Collection[str]
) -> Iterator[tuple[str | None, Sequence[ElementTree.Element]]]:
    """Yield kind and stack, innermost first, of each fault that code of ``sources`` did.

    Of a stack the topmost frames are valgrind's own malloc and its like; the one below did it.
    """
    for error in ElementTree.parse(report).getroot().iter("error"):
        stack = error.find("stack")
        assert stack is not None
        frames = [
            frame for frame in stack.iter("frame") if "valgrind" not in frame.findtext("obj", "")
        ]
        if frames and frames[0].findtext("file") in sources:
            yield error.findtext("kind"), frames
