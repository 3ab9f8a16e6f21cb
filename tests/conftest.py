"""Fixtures of all layers: a registry of its own for each test, copies of models, held runs."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from libsemantic.engine.batching import RunControl, RunStoppedError, Window
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Float32
from libsemantic.engine.session import Session
from libsemantic.engine.watchdog import Watchdog

# The same examples on every machine, however slow it is.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

GOLDEN = Path(__file__).parent / "golden" / "models"


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Give a fresh registry; it must come to rest within half a minute after the test."""
    fresh = Registry()
    yield fresh
    fresh.cleanup(30_000)
    assert fresh.list_models().count == 0


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """Give a watchdog, whose thread ends with the test."""
    guard = Watchdog()
    yield guard
    guard.stop()


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


class Gate:
    """Holds the runs of all sessions while it is closed; held runs can be stopped.

    While ``error`` is set runs that pass fail with it, while ``spoils`` is they answer NaN.
    """

    def __init__(self) -> None:
        self.error: SemanticError | None = None
        self.spoils = False
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self, control: RunControl) -> None:
        if self.error is not None:
            raise self.error
        if self._open.is_set():
            return
        stop = threading.Event()
        control.stop = stop.set
        self.entered.release()
        while not self._open.wait(0.002):
            if stop.is_set() or control.stopped:
                raise RunStoppedError

    def wait_for_a_run(self) -> None:
        assert self.entered.acquire(timeout=10), "nothing runs"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Put a gate, open at first, before the runs of models that are loaded from here on."""
    held = Gate()
    run = Session.run

    def run_behind_gate(
        session: Session, windows: Sequence[Window], control: RunControl
    ) -> list[Float32]:
        held.pass_through(control)
        outputs = run(session, windows, control)
        return [np.full_like(each, np.nan) for each in outputs] if held.spoils else outputs

    monkeypatch.setattr(Session, "run", run_behind_gate)
    yield held
    held.open()
