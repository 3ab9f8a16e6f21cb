"""Adapters of one base from many threads: their own answers, and a base that comes and goes."""

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from libsemantic.engine.config import AdapterMode, LoadOptions, RunOptions
from libsemantic.engine.errors import ClosedError, DeadlineError, NotReadyError
from libsemantic.engine.registry import Registry

from .crowd import Crowd

BASE = Path(__file__).parents[1] / "golden" / "models" / "modernbert-lora-base"
NAMES = ("domain", "guard")
CASES = json.loads((BASE / "expected.json").read_text())["adapters"]
TEXTS = [case["text"] for case in CASES["domain"]]
EXPECTED = {name: np.array([case["logits"] for case in CASES[name]]) for name in NAMES}


def path_of(name: str) -> str:
    return str(BASE / "adapters" / name)


def bases(registry: Registry) -> int:
    return sum(owner.startswith("base ") for owner in registry.stats().memory_owner)


def test_adapters_of_one_base_answer_differently_at_the_same_moment(registry: Registry) -> None:
    options = LoadOptions(parallel_runs=2)
    handles = {name: registry.load(path_of(name), options) for name in NAMES}
    merged = LoadOptions(name="merged", adapter_mode=AdapterMode.MERGED)
    handles["merged"] = registry.load(path_of("guard"), merged)

    def call(number: int) -> None:
        own = random.Random(number)
        for _ in range(20):
            which = own.choice([*NAMES, "merged"])
            rows = own.sample(range(len(TEXTS)), own.choice([1, 1, 1, 2, 6]))
            run = RunOptions(timeout_ms=20_000 if number % 2 else 0)
            found = registry.classify(handles[which], [TEXTS[row] for row in rows], run).logits
            expected = EXPECTED["guard" if which == "merged" else which][rows]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    Crowd(12, call).finish()
    assert bases(registry) == 1


def test_adapters_loaded_side_by_side_share_one_base(registry: Registry) -> None:
    for _ in range(3):
        handles: dict[int, int] = {}

        def load(number: int, handles: dict[int, int] = handles) -> None:
            path = path_of(NAMES[number % 2])
            handles[number] = registry.load(path, LoadOptions(name=f"adapter {number}"))

        Crowd(8, load).finish()
        assert bases(registry) == 1
        for number, handle in handles.items():
            found = registry.classify(handle, TEXTS).logits
            np.testing.assert_allclose(found, EXPECTED[NAMES[number % 2]], rtol=0, atol=1e-4)

        def unload(number: int, handles: dict[int, int] = handles) -> None:
            registry.unload(handles[number], 20_000)

        Crowd(8, unload).finish()
        assert bases(registry) == 0


def test_a_base_comes_and_goes_under_loads_and_unloads(registry: Registry) -> None:
    """Every adapter that loads works, whichever was the last of its base a moment before."""
    answered: Counter[str] = Counter()

    def live(number: int) -> None:
        own = random.Random(number)
        name = NAMES[number % 2]
        for turn in range(12):
            try:
                options = LoadOptions(
                    name=f"adapter {number}",
                    timeout_ms=own.choice([0, 0, 0, 5, 20_000]),
                )
                handle = registry.load(path_of(name), options)
            except DeadlineError:
                answered["too late"] += 1
                continue
            found = registry.classify(handle, [TEXTS[turn % 10]]).logits
            np.testing.assert_allclose(found[0], EXPECTED[name][turn % 10], rtol=0, atol=1e-4)
            if own.random() < 0.3:
                other = NAMES[1 - number % 2]
                registry.load(path_of(other), LoadOptions(replaces=handle))
                found = registry.classify(handle, [TEXTS[0]]).logits
                np.testing.assert_allclose(found[0], EXPECTED[other][0], rtol=0, atol=1e-4)
            registry.unload(handle, 20_000)
            answered["loaded"] += 1

    Crowd(6, live).finish()
    assert answered["loaded"] > 30
    assert registry.list_models().count == 0
    assert bases(registry) == 0


def test_unloading_an_adapter_under_traffic_leaves_the_other_alone(registry: Registry) -> None:
    kept = registry.load(path_of("guard"))
    ended = threading.Event()

    def ask(_: int) -> None:
        while not ended.is_set():
            found = registry.classify(kept, TEXTS[:2]).logits
            np.testing.assert_allclose(found, EXPECTED["guard"][:2], rtol=0, atol=1e-4)

    asking = Crowd(3, ask)
    try:
        for _ in range(5):
            handle = registry.load(path_of("domain"))
            answered: Counter[str] = Counter()

            def call(_: int, handle: int = handle, answered: Counter[str] = answered) -> None:
                while True:
                    try:
                        found = registry.classify(handle, TEXTS[:1]).logits
                    except NotReadyError:
                        time.sleep(0.001)  # else callers pass the lock among themselves
                        continue
                    except ClosedError:
                        return
                    np.testing.assert_allclose(found, EXPECTED["domain"][:1], rtol=0, atol=1e-4)
                    answered["ok"] += 1

            crowd = Crowd(4, call)
            while answered["ok"] < 10 and crowd.alive:
                threading.Event().wait(0.001)
            registry.unload(handle, 20_000)
            crowd.finish()
            assert answered["ok"] >= 10
    finally:
        ended.set()
    asking.finish()
    assert bases(registry) == 1
