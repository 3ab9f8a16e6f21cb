"""Everything that a host may do, from many threads at once, and what must hold meanwhile.

Six models stand in six slots and are loaded, replaced, unloaded and cleaned up while all calls
go on. Of every answer it is known which are right; of every handle whether it is gone; of every
row what the counters must say of it.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libsemantic.engine.config import Shorten
from libsemantic.engine.errors import Status
from libsemantic.ffi.codecs import CData

from ..abi.binding import MODELS, Library

WORDS = ["math", "law", "code", "数", "学", "café", "😀", "router", "the", "jane@example.org"]
TEXTS = 30
TOLERANCE = 1e-4
# Statuses of a call that never held the model: its rows are counted nowhere.
NOT_COUNTED = {Status.CLOSED, Status.NOT_READY, Status.NOT_FOUND}
COUNTED_AS = {
    Status.OK: "completed",
    Status.DEADLINE: "expired",
    Status.CANCELLED: "cancelled",
}
COUNTERS = ("completed", "failed", "expired", "cancelled", "refused")


@dataclass(frozen=True, slots=True)
class Slot:
    """A name, the functions its models answer, and the folders that may stand in it."""

    name: str
    functions: tuple[str, ...]
    folders: tuple[str, ...]


SEQUENCE = ("semantic_classify", "semantic_classify_pairs")
TOKENS = ("semantic_classify_tokens", "semantic_classify_token_pairs")
SLOTS = (
    Slot("topics", SEQUENCE, ("bert-seq",)),
    Slot("topics again", SEQUENCE, ("bert-seq",)),
    Slot("ranks", SEQUENCE, ("bert-reranker",)),
    Slot("people", TOKENS, ("bert-token",)),
    # These two answer differently: a call must get the one or the other, whole.
    Slot("vectors", ("semantic_embed",), ("bert-embed-mean", "bert-embed-cls")),
    Slot("more vectors", ("semantic_embed",), ("bert-embed-cls", "bert-embed-mean")),
)
Values = NDArray[np.float64]


def text_of(chosen: random.Random) -> bytes:
    return " ".join(chosen.choices(WORDS, k=chosen.choice([1, 2, 3, 5, 20, 60, 150]))).encode()


def values_of(name: str, result: Mapping[str, CData]) -> Values:
    """Return one row of numbers for each row of a result: NaN where the row failed."""
    rows = len(result["rows"]["status"])
    if name == "semantic_embed":
        return np.asarray(result["values"], np.float64)
    if name in SEQUENCE:
        return np.asarray(result["logits"], np.float64)
    if name == "semantic_count_tokens":
        windows = np.diff(result["row_start"])
        table = np.stack([result["rows"]["token_count"], windows], axis=1).astype(np.float64)
    else:
        table = np.zeros((rows, 3))
        np.add.at(table, (result["row"], 0), 1)
        np.add.at(table, (result["row"], 1), result["score"])
        np.add.at(table, (result["row"], 2), (result["label_index"] + 1) * result["end"])
    table[result["rows"]["status"] != Status.OK] = np.nan
    return table


class Host:
    """One caller of the library: its calls, each checked as far as it can be alone."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def load(self, folder: Path, values: Mapping[str, CData]) -> tuple[Status, int]:
        arguments = self.library.good_arguments("semantic_load_model", 0, "")
        arguments["path"] = self.library.text(str(folder))
        arguments["options"] = self.library.options("semantic_load_options", values)
        status = Status(self.library.call("semantic_load_model", arguments))
        return status, int(arguments["model"].id)

    def unload(self, handle: int, timeout_ms: int) -> Status:
        arguments = self.library.good_arguments("semantic_unload_model", handle, "")
        arguments["timeout_ms"] = timeout_ms
        return Status(self.library.call("semantic_unload_model", arguments))

    def cleanup(self, timeout_ms: int) -> Status:
        return Status(self.library.lib.semantic_cleanup(timeout_ms, self.library.error()))

    def take(self, name: str, arguments: Mapping[str, CData]) -> tuple[Status, dict[str, CData]]:
        """Call a function with a result; return the status and a copy, empty where it failed."""
        status = Status(self.library.call(name, arguments))
        out = self.library.out(name, arguments)
        assert (out != self.library.ffi.NULL) == (status in (Status.OK, Status.PARTIAL)), status
        return status, {} if out == self.library.ffi.NULL else self.library.take(out)

    def stats(self) -> dict[str, CData]:
        status, stats = self.take(
            "semantic_get_stats", self.library.good_arguments("semantic_get_stats", 0, "")
        )
        assert status == Status.OK
        return stats

    def arguments(
        self, name: str, handle: int, texts: Sequence[bytes], options: Mapping[str, CData]
    ) -> dict[str, CData]:
        arguments = self.library.good_arguments(name, handle, "")
        rows = self.library.texts(*texts)
        other = self.library.texts(*[b"the router"] * len(texts))
        arguments |= {"n": len(texts), **dict.fromkeys(("texts", "left", "context"), rows)}
        arguments |= dict.fromkeys(("right", "answer"), other)
        shorten = {"shorten": Shorten.FIRST} if name.endswith("pairs") else {}
        arguments["options"] = self.library.options("semantic_run_options", {**options, **shorten})
        return arguments


def books(stats: Mapping[str, CData]) -> Counter[str]:
    """Return the sums of all counters, checked to balance entry by entry."""
    ended = sum(stats[name] for name in ("completed", "failed", "expired", "cancelled"))
    assert (stats["accepted"] == ended + stats["in_flight"]).all()
    names = (*COUNTERS, "accepted", "in_flight", "tokens", "batches")
    return Counter({name: int(stats[name].sum()) for name in names})


class Traffic:
    """The threads, what they know of the handles, and what the counters must say."""

    def __init__(self, library: Library, threads: int, seed: int) -> None:
        self.calls: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._host = Host(library)
        self._seed = seed
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._current: dict[str, int] = {}  # by slot
        self._slot_of: dict[int, Slot] = {}  # every handle that was ever given out
        self._stopping: set[int] = set()
        self._closed: set[int] = set()
        # What answered under a handle in one generation is one folder.
        self._answered_by: dict[tuple[int, int], str] = {}
        chosen = random.Random(seed)
        self._texts = [text_of(chosen) for _ in range(TEXTS)]
        self._right: dict[tuple[str, str], Values] = {}
        self._before: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"caller {number}", daemon=True)
            for number in range(threads)
        ]

    # ---- begin and end

    def start(self) -> None:
        """Find the right answers, one text at a time, then let all threads go."""
        for folder in sorted({folder for slot in SLOTS for folder in slot.folders}):
            status, handle = self._host.load(MODELS / folder, {"name": f"reference {folder}"})
            assert status == Status.OK
            slot = next(slot for slot in SLOTS if folder in slot.folders)
            for name in (*slot.functions, "semantic_count_tokens"):
                rows = []
                for text in self._texts:
                    arguments = self._host.arguments(name, handle, [text], {})
                    status, result = self._host.take(name, arguments)
                    assert status == Status.OK
                    rows.append(values_of(name, result))
                self._right[folder, name] = np.concatenate(rows)
            assert self._host.unload(handle, 10_000) == Status.OK
        self._before = books(self._host.stats())
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every thread end its call; raise what the first of them raised."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        assert not hanging, f"hang: {hanging}"
        if self.errors:
            raise self.errors[0]

    def watch(self, seconds: float) -> int:
        """Look at the statistics until the time is over; return how often."""
        ends = time.monotonic() + seconds
        last, looks = self._before, 0
        while time.monotonic() < ends and not self.errors:
            now = books(self._host.stats())
            for name in (*COUNTERS, "tokens", "batches"):
                assert now[name] >= last[name], f"{name} went back from {last[name]} to {now[name]}"
            last, looks = now, looks + 1
            time.sleep(0.01)
        return looks

    def reconcile(self) -> None:
        """Require that the counters say what the callers saw."""
        now = books(self._host.stats())
        assert now["in_flight"] == self._before["in_flight"] == 0
        counted = {name: now[name] - self._before[name] for name in COUNTERS}
        assert counted == {name: self.tally[name] for name in COUNTERS}

    def _run(self, number: int) -> None:
        chosen = random.Random(self._seed * 1000 + number)
        actions = list(self._ACTIONS)
        try:
            while not self._ended.is_set() and not self.errors:
                (action,) = chosen.choices(actions, list(self._ACTIONS.values()))
                action(self, chosen)
        except BaseException as error:
            self.errors.append(error)

    # ---- handles

    def _pick(self, chosen: random.Random) -> tuple[Slot, int]:
        """Return a slot and its handle: now and then an old one, 0 where there is none yet."""
        slot = chosen.choice(SLOTS)
        if chosen.random() < 0.04:
            with self._lock:
                old = [handle for handle in self._closed if self._slot_of[handle] is slot]
            if old:
                return slot, chosen.choice(old)
        return slot, self._current.get(slot.name, 0)

    def _seen(self, handle: int, before: tuple[bool, bool], status: Status) -> None:
        """Note what a call on a handle answered; ``before``: was it stopping or closed already?"""
        was_stopping, was_closed = before
        if handle == 0:
            assert status == Status.INVALID_ARGUMENT, status
            return
        if was_closed:
            assert status == Status.CLOSED, f"handle {handle} was closed, then {status.name}"
        elif was_stopping:
            assert status in NOT_COUNTED, f"handle {handle} was stopping, then {status.name}"
        with self._lock:
            if status is Status.CLOSED:
                self._closed.add(handle)
            elif status is Status.NOT_READY:
                self._stopping.add(handle)

    def _state(self, handle: int) -> tuple[bool, bool]:
        with self._lock:
            return handle in self._stopping, handle in self._closed

    def _count(self, status: Status | str, rows: int = 1) -> None:
        name = status if isinstance(status, str) else COUNTED_AS.get(status, "failed")
        with self._lock:
            self.tally[name] += rows

    # ---- actions

    def _ask(self, chosen: random.Random) -> None:
        slot, handle = self._pick(chosen)
        name = chosen.choice((*slot.functions * 3, "semantic_count_tokens"))
        indices = chosen.choices(range(TEXTS), k=chosen.choice([1, 1, 1, 2, 5, 12]))
        texts = [self._texts[index] for index in indices]
        options: dict[str, CData] = {}
        kind = chosen.choice(["plain"] * 12 + ["hasty", "hasty", "keyed", "keyed", "broken"])
        if kind == "hasty":
            options["timeout_ms"] = chosen.choice([1, 3, 10, 30])
        elif kind == "keyed":
            options["cancel_key"] = chosen.randrange(1, 6)
        elif kind == "broken":
            texts[0] = b"\xff"
        before = self._state(handle)
        arguments = self._host.arguments(name, handle, texts, options)
        status, result = self._host.take(name, arguments)
        self._seen(handle, before, status)
        if status in (Status.OK, Status.PARTIAL):
            self._check(name, handle, slot, indices, result)
        elif handle != 0 and status not in NOT_COUNTED:
            expected = {
                "hasty": (Status.DEADLINE,),
                "keyed": (Status.CANCELLED,),
                "broken": (Status.INVALID_ARGUMENT,),
            }.get(kind, ())
            assert status in (*expected, Status.OVERLOADED), (kind, status)
            refused = status is Status.OVERLOADED
            self._count("refused" if refused else status, len(texts))
        self.calls[f"{name} {status.name}"] += 1
        if status in NOT_COUNTED:
            time.sleep(0.003)  # leave the processor to those who get answers
        if status in (Status.CLOSED, Status.INVALID_ARGUMENT) and chosen.random() < 0.3:
            self._load(chosen)

    def _check(
        self,
        name: str,
        handle: int,
        slot: Slot,
        indices: Sequence[int],
        result: Mapping[str, CData],
    ) -> None:
        statuses = result["rows"]["status"]
        for status in statuses:
            self._count(Status(status))
        good = statuses == Status.OK
        found = values_of(name, result)
        assert np.isnan(found[~good]).all()
        fitting = [
            folder
            for folder in slot.folders
            if np.allclose(
                found[good], self._right[folder, name][indices][good], rtol=0, atol=TOLERANCE
            )
        ]
        assert fitting, f"{name} in slot {slot.name!r} gave a wrong answer"
        if len(fitting) == 1 and good.any():
            place = handle, result["generation"]
            with self._lock:
                folder = self._answered_by.setdefault(place, fitting[0])
            assert folder == fitting[0], f"handle, generation {place}: two models answer"

    def _ask_wrongly(self, chosen: random.Random) -> None:
        slot, handle = self._pick(chosen)
        wrong = "semantic_classify" if slot.functions != SEQUENCE else "semantic_embed"
        name, options, expected = chosen.choice(
            [
                (wrong, {}, Status.UNSUPPORTED),
                (slot.functions[0], {"window_overlap": -1}, Status.INVALID_ARGUMENT),
                (slot.functions[0], {"layer": 99}, Status.INVALID_ARGUMENT),
            ]
        )
        before = self._state(handle)
        arguments = self._host.arguments(name, handle, self._texts[:2], options)
        status, _ = self._host.take(name, arguments)
        self.calls[f"wrong {status.name}"] += 1
        if options == {"window_overlap": -1}:  # refused before it gets to the model
            assert status == Status.INVALID_ARGUMENT
            return
        self._seen(handle, before, status)
        if handle and status not in NOT_COUNTED:
            assert status == expected
            self._count("refused", 2)

    def _look(self, chosen: random.Random) -> None:
        slot, handle = self._pick(chosen)
        library, which = self._host.library, chosen.randrange(4)
        if which == 0:
            before = self._state(handle)
            arguments = library.good_arguments("semantic_get_model_info", handle, "")
            status, info = self._host.take("semantic_get_model_info", arguments)
            self._seen(handle, before, status)
            assert not info or info["name"] == slot.name
        elif which == 1:
            arguments = library.good_arguments("semantic_find_model", 0, slot.name)
            with self._lock:
                closed = set(self._closed)
            status = Status(library.call("semantic_find_model", arguments))
            assert status in (Status.OK, Status.NOT_FOUND, Status.NOT_READY)
            assert arguments["model"].id not in closed
        elif which == 2:
            arguments = library.good_arguments("semantic_list_models", 0, "")
            with self._lock:
                closed = set(self._closed)
            status, models = self._host.take("semantic_list_models", arguments)
            assert status == Status.OK
            assert not closed & set(models["model_id"].tolist())
            assert len(set(models["name"])) == len(models["name"])
            assert (np.diff(models["model_id"].astype(np.int64)) > 0).all()
        else:
            books(self._host.stats())
        self.calls["look"] += 1

    def _cancel(self, chosen: random.Random) -> None:
        status = self._host.library.lib.semantic_cancel(chosen.randrange(1, 7))
        assert status in (Status.OK, Status.NOT_FOUND)
        self.calls[f"cancel {Status(status).name}"] += 1

    def _load(self, chosen: random.Random) -> None:
        slot = chosen.choice(SLOTS)
        with self._lock:
            newest = max(self._slot_of, default=0)
        values = {"name": slot.name, "parallel_runs": chosen.choice([0, 1, 2]), "queue_rows": 60}
        status, handle = self._host.load(MODELS / chosen.choice(slot.folders), values)
        self.calls[f"load {status.name}"] += 1
        if status is not Status.OK:
            assert status in (Status.ALREADY_EXISTS, Status.NOT_READY, Status.CLOSED)
            assert handle == 0
            return
        with self._lock:
            assert handle > newest, f"handle {handle} was given out before"
            assert handle not in self._slot_of
            self._slot_of[handle] = slot
            self._current[slot.name] = max(handle, self._current.get(slot.name, 0))

    def _replace(self, chosen: random.Random) -> None:
        slot, handle = self._pick(chosen)
        if not handle:
            return
        fails = chosen.random() < 0.2
        folder = Path("/nowhere") if fails else MODELS / chosen.choice(slot.folders)
        before = self._state(handle)
        status, same = self._host.load(folder, {"replaces": handle, "queue_rows": 60})
        self.calls[f"replace {status.name}"] += 1
        if status is Status.OK:
            assert same == handle
            assert before == (False, False), f"handle {handle} was revived"
        elif before[1]:  # a cleanup under way is told first
            assert status in (Status.CLOSED, Status.NOT_READY)
        else:
            expected = (Status.NOT_FOUND,) if fails else ()
            assert status in (*expected, Status.NOT_READY, Status.CLOSED)

    def _unload(self, chosen: random.Random) -> None:
        _, handle = self._pick(chosen)
        timeout = chosen.choice([0, 5, 10_000])
        before = self._state(handle)
        status = self._host.unload(handle, timeout)
        self.calls[f"unload {status.name}"] += 1
        if not handle or before[1]:
            self._seen(handle, (False, before[1]), status)
            return
        assert status in (Status.OK, Status.CLOSED, Status.DEADLINE)
        with self._lock:
            (self._stopping if status is Status.DEADLINE else self._closed).add(handle)

    def _clean_up(self, chosen: random.Random) -> None:
        with self._lock:
            known = set(self._slot_of)
        status = self._host.cleanup(chosen.choice([0, 3, 10_000]))
        self.calls[f"cleanup {status.name}"] += 1
        while status is not Status.OK:
            assert status is Status.DEADLINE
            status = self._host.cleanup(10_000)
        with self._lock:
            self._closed |= known

    _ACTIONS: Mapping[Callable[..., None], float] = {
        _ask: 100,
        _ask_wrongly: 3,
        _look: 8,
        _cancel: 4,
        _load: 4,
        _replace: 2,
        _unload: 0.5,
        _clean_up: 0.05,
    }


def spread(calls: Counter[str]) -> dict[str, Counter[str]]:
    """Group the counted calls by what was called."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for name, count in calls.items():
        what, _, status = name.rpartition(" ")
        groups[what or status][status] += count
    return groups
