"""Candle's init functions at once and in any order: the same models are loaded in the end."""

import random
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from cffi import FFI

from libsemantic.engine.errors import AlreadyExistsError, ClosedError, NotReadyError
from libsemantic.engine.registry import Registry
from libsemantic.ffi.candle.answers import Interned
from libsemantic.ffi.candle.attach import VERBS
from libsemantic.ffi.candle.context import Context
from libsemantic.ffi.candle.selectors import Selectors
from libsemantic.ffi.candle.slots import Slots
from libsemantic.ffi.candle.table import ROWS

from ..concurrency.crowd import Crowd

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
ROW_OF = {row.function: row for row in ROWS}


def path(name: str) -> str:
    return str(GOLDEN / name)


# The arguments of each init function, with tiny models.
INITS: Mapping[str, tuple[object, ...]] = {
    "init_similarity_model": (path("bert-embed-mean"), True),
    "init_classifier": (path("bert-seq"), 7, True),
    "init_generic_classifier": (path("bert-seq"), 7, True),
    "init_pii_classifier": (path("electra-seq"), 2, True),
    "init_jailbreak_classifier": (path("electra-seq"), 2, True),
    "init_candle_bert_classifier": (path("bert-seq"), 7, True),
    "init_deberta_jailbreak_classifier": (path("deberta-v3-seq"), True),
    "init_modernbert_classifier": (path("modernbert-seq-cls"), True),
    "init_fact_check_classifier": (path("modernbert-seq-mean"), True),
    "init_mmbert_classifier": (path("modernbert-seq-mean"), True),
    "init_mmbert_classifier_auto": (path("modernbert-seq-mean"), True),
    "init_mmbert_32k_jailbreak_classifier": (path("modernbert-seq-mean"), True),
    "init_bert_token_classifier": (path("bert-token"), 9, True),
    "init_candle_bert_token_classifier": (path("bert-token"), 9, True),
    "init_modernbert_pii_token_classifier": (path("modernbert-token"), True),
    "init_hallucination_model": (path("modernbert-hallucination"), True),
    "init_nli_model": (path("modernbert-nli"), True),
    "init_lora_unified_classifier": (
        *(path("bert-seq"), path("bert-token"), path("electra-seq"), "bert", True),
    ),
    "init_embedding_models": (path("qwen3-embed-last"), path("gemma3-embed-mean"), True),
    "init_embedding_models_with_mmbert": (
        *(path("qwen3-embed-last"), path("gemma3-embed-mean"), path("mmbert-embed-mean"), True),
    ),
    "init_mmbert_embedding_model": (path("mmbert-embed-mean"), True),
    "init_embedding_models_batched": (path("qwen3-embed-last"), 8, 10, True),
}


SLOTS_OF_ALL = {slot for function in INITS for slot in ROW_OF[function].slots}


class Functions:
    """Candle's functions on a registry, without C."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._slots = Slots(registry)
        self._labels, self._selectors = Interned(FFI()), Selectors()

    def call(self, function: str, *arguments: object) -> object:
        row = ROW_OF[function]
        return VERBS[row.verb](Context(row, self._slots, self._labels, self._selectors), *arguments)

    def state(self) -> dict[str, str]:
        """Return the path of each model that is loaded."""
        models = self._registry.list_models()
        infos = [self._registry.info(handle) for handle in models.model_id.tolist()]
        assert set(models.state.tolist()) <= {2}
        return {info.name: info.path for info in infos}


def test_any_order_ends_in_the_same_state(registry: Registry) -> None:
    functions, order = Functions(registry), list(INITS)
    states = []
    for seed in range(3):
        random.Random(seed).shuffle(order)
        for function in order:
            assert functions.call(function, *INITS[function]) is True
        handles = registry.list_models().model_id.tolist()
        assert functions.call(order[0], *INITS[order[0]]) is True  # without another load
        assert registry.list_models().model_id.tolist() == handles
        states.append(functions.state())
        registry.cleanup(10_000)
        assert functions.state() == {}
        assert functions.call("is_nli_model_initialized") is False
    assert states[0] == states[1] == states[2]
    assert len(states[0]) == len(SLOTS_OF_ALL)


def test_all_at_once_end_in_the_same_state(registry: Registry) -> None:
    functions, order = Functions(registry), list(INITS)

    def work(number: int) -> None:
        mine = order[:]
        random.Random(number).shuffle(mine)
        for function in mine:
            assert functions.call(function, *INITS[function]) is True

    Crowd(16, work).finish()
    assert len(functions.state()) == len(SLOTS_OF_ALL)
    # Every slot was loaded once.
    assert max(registry.list_models().model_id.tolist()) == len(SLOTS_OF_ALL)


def test_of_two_folders_one_is_loaded(registry: Registry) -> None:
    functions = Functions(registry)
    names = ["modernbert-seq-cls", "modernbert-seq-mean"]
    loaded: list[str] = []
    refused: list[str] = []

    def work(number: int) -> None:
        name = names[number % 2]
        try:
            functions.call("init_modernbert_classifier", path(name), True)
            loaded.append(name)
        except AlreadyExistsError:
            refused.append(name)

    Crowd(16, work).finish()
    (winner,) = set(loaded)
    assert set(refused) == set(names) - {winner}
    assert (len(loaded), len(refused)) == (8, 8)
    assert functions.state() == {"candle/modernbert": path(winner)}


@pytest.mark.parametrize("seed", range(3))
def test_a_cleanup_among_inits_leaves_whole_states(registry: Registry, seed: int) -> None:
    functions = Functions(registry)
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(5):
                registry.cleanup(10_000)
            stop.set()
            return
        order = random.Random(16 * seed + number)
        while not stop.is_set():
            function = order.choice(list(INITS))
            try:
                assert functions.call(function, *INITS[function]) is True
            except (ClosedError, NotReadyError):  # a cleanup stopped it, or was under way
                continue

    Crowd(4, work).finish()
    for function, arguments in INITS.items():
        assert functions.call(function, *arguments) is True
    assert len(functions.state()) == len(SLOTS_OF_ALL)
