"""candle-binding's global cells as names in the registry: a slot holds the model ``candle/...``."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from libsemantic.engine.config import Demands, LoadOptions, LongText, Task
from libsemantic.engine.errors import (
    AlreadyExistsError,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
)
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Result

from .hub import local_folder
from .table import ROWS, SLOTS, VECTORS, Slot

TOKEN_LIMIT = "SEMANTIC_CANDLE_MAX_TOKENS"
DEFAULT_TOKEN_LIMIT = 8192
_NAMES = {slot: Slot.model_name(slot) for slot in SLOTS}
_UNDO_MS = 60_000
_DIGITS = re.compile("[0-9]{1,10}")


class Wanted(NamedTuple):
    """A model for a slot.

    ``label_count``, 0 for any, holds for adapters too unless ``adapters_count`` is False;
    ``base_path`` is for adapters alone; ``max_batch_rows`` 0 stands for the default.
    """

    slot: str
    path: str
    label_count: int = 0
    adapters_count: bool = True
    base_path: str = ""
    max_batch_rows: int = 0


def _loaders() -> Mapping[str, str]:
    """Return for each slot the functions that load it, in words."""
    names: dict[str, list[str]] = {}
    for row in ROWS:
        if row.verb.startswith("load"):
            for slot in row.slots:
                names.setdefault(slot, []).append(row.function)
    return {slot: " or ".join(functions) for slot, functions in names.items()}


_LOADERS = _loaders()


class Slots:
    """Loads and finds the models of slots; safe from any thread.

    The models are the registry's; all that is held here is one lock for each slot, so that of
    several loads at once the first one counts, and what was told of models.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._locks = {slot: threading.Lock() for slot in SLOTS}
        self._told: set[tuple[int, str]] = set()
        self._long_text = LongText.CUT if os.environ.get(TOKEN_LIMIT) else LongText.AUTO

    def load(self, slot: str, path: str, use_cpu: bool) -> None:
        """Load the model of a slot, unless it holds that folder already.

        Raise AlreadyExistsError where the slot holds another folder, else as a load does.
        """
        self.load_all([Wanted(slot, path)], use_cpu)

    def load_all(self, wanted: Sequence[Wanted], use_cpu: bool) -> None:
        """Load several slots, all or none."""
        loaded: list[int] = []
        with ExitStack() as held:
            for slot in sorted(each.slot for each in wanted):
                held.enter_context(self._locks[slot])
            try:
                for each in wanted:
                    handle = self._load(each, use_cpu)
                    if handle is not None:
                        loaded.append(handle)
            except BaseException:
                for handle in loaded:
                    # By a cleanup, or later: what is raised is why the load failed.
                    with suppress(ClosedError, DeadlineError):
                        self.registry.unload(handle, _UNDO_MS)
                raise

    def _load(self, wanted: Wanted, use_cpu: bool) -> int | None:
        """Return the handle of a new model, None where the slot holds the folder already."""
        name = Slot.model_name(wanted.slot)
        folder = local_folder(wanted.path)
        known = self.find(wanted.slot)
        if known is not None:
            held = self.registry.info(known).path
            if os.path.realpath(folder) != held:
                raise AlreadyExistsError(
                    f"{name} holds {held} and cannot hold {folder} too; unload it first, or run "
                    "another process"
                )
            return None
        kind, limit = SLOTS[wanted.slot], token_limit()
        options = LoadOptions(
            name=name,
            task=Task[kind.task],
            device="cpu" if use_cpu else "auto",
            max_batch_rows=wanted.max_batch_rows,
        )
        demands = Demands(
            families=kind.families,
            label_count=wanted.label_count,
            adapters_count=wanted.adapters_count,
            unnamed_labels=kind.unnamed_labels and (wanted.label_count or kind.unnamed_labels),
            base_path=wanted.base_path,
            layers=kind.layers,
            # candle-binding cuts what it classifies, never what it embeds.
            most_tokens=0 if kind.task == VECTORS else DEFAULT_TOKEN_LIMIT,
            token_limit=0 if kind.task == VECTORS else limit,
        )
        return self.registry.load(folder, options, demands)

    def find(self, slot: str) -> int | None:
        """Return the handle of a slot's model, None where it is empty.

        Raise NotReadyError while the model loads or stops.
        """
        try:
            return self.registry.find(_NAMES[slot])
        except NotFoundError:
            return None

    def first(self, slots: Sequence[str]) -> int:
        """Return the handle of the first of these slots that holds a model that is ready.

        Raise NotReadyError where one loads or stops and no other is ready, NotFoundError where
        all are empty.
        """
        busy = ""
        for slot in slots:
            try:
                handle = self.find(slot)
            except NotReadyError:
                busy = busy or slot
            else:
                if handle is not None:
                    return handle
        if busy and (handle := self.find(busy)) is not None:
            return handle
        names = " and ".join(Slot.model_name(slot) for slot in slots)
        remedy = " or ".join(dict.fromkeys(_LOADERS[slot] for slot in slots))
        raise NotFoundError(f"no model is loaded as {names}; call {remedy} first")

    def long_text(self) -> LongText:
        """Return what becomes of a long text: where a limit was set, any is cut."""
        return self._long_text

    def note_cuts(self, handle: int, result: Result) -> None:
        """Tell in the log of the first text that was cut for a model."""
        if 1 in result.rows.truncated:
            self.tell_once(
                handle, "a text was cut at {0.max_tokens} tokens; the statistics count all"
            )

    def tell_once(self, handle: int, words: str) -> None:
        """Tell something of a model in the log, the first time; its info is ``{0}`` in the words.

        A model that is gone is told nothing of: its answer is good all the same.
        """
        if (handle, words) in self._told:
            return
        self._told.add((handle, words))
        with suppress(ClosedError, NotReadyError):
            info = self.registry.info(handle)
            self.registry.log.warning(f"{info.name}: {words.format(info)}; this is told once")


def require_all(result: Result) -> None:
    """Raise the error of the first row that failed."""
    failed = result.rows.first_error()
    if failed is not None:
        row, error = failed
        raise error.detached(row)


def token_limit() -> int:
    """Return the most tokens of a text that are scored, as the environment says; 0: it does not.

    Raise InvalidArgumentError where it says what is no such number.
    """
    text = os.environ.get(TOKEN_LIMIT, "")
    if not text:
        return 0
    # Python refuses to read thousands of digits.
    if not _DIGITS.fullmatch(text) or not 0 < int(text) < 1 << 31:
        raise InvalidArgumentError(
            f"{TOKEN_LIMIT} is {text!r:.40}; set it to a number of tokens, or to nothing"
        )
    return int(text)
