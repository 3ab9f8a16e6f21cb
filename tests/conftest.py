"""Fixtures of all layers: a registry of its own for each test, and copies of golden models."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from libsemantic.engine.registry import Registry

GOLDEN = Path(__file__).parent / "golden" / "models"


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Give a fresh registry; it must come to rest within half a minute after the test."""
    fresh = Registry()
    yield fresh
    fresh.cleanup(30_000)
    assert fresh.list_models().count == 0


@pytest.fixture
def copy_golden(tmp_path: Path) -> Callable[[str, Mapping[str, object]], Path]:
    """Give a function that copies a golden model and changes its JSON files.

    ``changes`` maps a file to its new content; a table is merged into the one that is there, and
    keys whose value is None are taken out.
    """

    def copy(name: str, changes: Mapping[str, object]) -> Path:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(GOLDEN / name, folder, ignore=shutil.ignore_patterns("expected*"))
        for file, content in changes.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Mapping) and path.exists():
                merged = json.loads(path.read_text()) | dict(content)
                content = {key: value for key, value in merged.items() if value is not None}
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return copy
