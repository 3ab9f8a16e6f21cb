"""The verbs of candle's embeddings and selectors, called without C."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from cffi import FFI

from libsemantic.engine.config import NO_DEMANDS, Demands, LoadOptions, LogLevel, RunOptions
from libsemantic.engine.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    SemanticError,
    UnsupportedError,
)
from libsemantic.engine.registry import Registry
from libsemantic.ffi.candle import embedding, selecting
from libsemantic.ffi.candle.answers import Interned
from libsemantic.ffi.candle.arguments import Address, Doubles, Name, OptionalName, Text, Texts
from libsemantic.ffi.candle.context import Context
from libsemantic.ffi.candle.selectors import Selectors
from libsemantic.ffi.candle.similarity import Vector
from libsemantic.ffi.candle.slots import Slots
from libsemantic.ffi.candle.table import ROWS

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
FOLDERS = {"qwen3": "qwen3-embed-last", "gemma": "gemma3-embed-mean", "mmbert": "mmbert-embed-mean"}
PATHS = {name: OptionalName(str(GOLDEN / folder)) for name, folder in FOLDERS.items()}
NONE = OptionalName("")
ROW_OF = {row.function: row for row in ROWS}
CopyGolden = Callable[[str, Mapping[str, object]], Path]
For = Callable[[str], Context]


@pytest.fixture
def on(registry: Registry) -> Iterator[For]:
    """Give the context of a function by its name."""
    slots, labels, selectors = Slots(registry), Interned(FFI()), Selectors()
    yield lambda function: Context(ROW_OF[function], slots, labels, selectors)
    assert len(selectors) == 0


def load_all(on: For) -> None:
    context = on("init_embedding_models_with_mmbert")
    assert embedding.load_embeddings_with_mmbert(
        context, PATHS["qwen3"], PATHS["gemma"], PATHS["mmbert"], True
    )


def by_name(on: For, name: str, layer: int = 0, text: bytes = b"the law of math") -> Vector:
    context = on("get_embedding_2d_matryoshka")
    return embedding.embed_layered(context, Text(text), Name(name), layer, 0)


# ---- Embeddings


def test_loads_are_all_or_none(registry: Registry, on: For) -> None:
    context = on("init_embedding_models")
    with pytest.raises(UnsupportedError, match="family"):
        embedding.load_embeddings(context, PATHS["qwen3"], PATHS["mmbert"], True)
    with pytest.raises(NotFoundError):
        embedding.load_embeddings(context, PATHS["qwen3"], OptionalName("/nowhere"), True)
    assert registry.list_models().count == 0
    assert embedding.load_embeddings(context, PATHS["qwen3"], NONE, True)
    assert embedding.load_embeddings(context, PATHS["qwen3"], PATHS["gemma"], True)
    assert registry.list_models().name == ("candle/qwen3", "candle/gemma")
    handle = registry.find("candle/qwen3")
    with pytest.raises(AlreadyExistsError, match="candle/gemma holds"):
        embedding.load_embeddings(context, NONE, PATHS["qwen3"], True)
    with pytest.raises(InvalidArgumentError, match="no path"):
        embedding.load_embeddings(context, NONE, NONE, True)
    assert registry.find("candle/qwen3") == handle


INITS: Sequence[Callable[[For], bool]] = (
    lambda on: embedding.load_embeddings(
        on("init_embedding_models"), PATHS["qwen3"], PATHS["gemma"], True
    ),
    lambda on: embedding.load_embeddings_with_mmbert(
        on("init_embedding_models_with_mmbert"), NONE, PATHS["gemma"], PATHS["mmbert"], True
    ),
    lambda on: embedding.load_batched(
        on("init_embedding_models_batched"), Name(PATHS["qwen3"]), 4, 10, True
    ),
)
ALL_LOADED = {"candle/qwen3", "candle/gemma", "candle/mmbert-embedding", "candle/qwen3-batched"}


@pytest.mark.parametrize("order", list(permutations(range(len(INITS)))))
def test_the_order_of_inits_does_not_matter(
    registry: Registry, on: For, order: Sequence[int]
) -> None:
    assert all(INITS[index](on) for index in order)
    assert set(registry.list_models().name) == ALL_LOADED


def test_inits_at_once_end_in_one_state(registry: Registry, on: For) -> None:
    start = threading.Barrier(16)

    def init(index: int) -> bool:
        start.wait()
        return INITS[index % len(INITS)](on)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(init, range(16)))
    assert set(registry.list_models().name) == ALL_LOADED
    assert registry.list_models().count == len(ALL_LOADED)


def test_the_batched_model_takes_its_batch_from_the_caller(
    monkeypatch: pytest.MonkeyPatch, on: For
) -> None:
    seen: list[LoadOptions | None] = []
    load = Registry.load

    def watched(
        each: Registry,
        path: str,
        options: LoadOptions | None = None,
        demands: Demands = NO_DEMANDS,
    ) -> int:
        seen.append(options)
        return load(each, path, options, demands)

    monkeypatch.setattr(Registry, "load", watched)
    context = on("init_embedding_models_batched")
    with pytest.raises(InvalidArgumentError, match="max_batch_size is -1"):
        embedding.load_batched(context, Name(PATHS["qwen3"]), -1, 10, True)
    assert embedding.load_batched(context, Name(PATHS["qwen3"]), 7, 2**64 - 1, True)
    (options,) = seen
    assert options is not None
    assert (options.name, options.max_batch_rows) == ("candle/qwen3-batched", 7)


def test_the_batched_model_can_be_shut_down_and_come_back(registry: Registry, on: For) -> None:
    shutdown = on("shutdown_embedding_batched")
    embedding.unload(shutdown)
    assert INITS[2](on)
    text, qwen3 = Text("zwei Wörter, 三".encode()), Name("qwen3")
    first = embedding.embed_batched(on("get_embedding_batched"), text, qwen3, 16)
    tokens = registry.count_tokens(registry.find("candle/qwen3-batched"), [text])
    assert first.sequence_length == tokens.rows.token_count[0] > 3
    embedding.unload(shutdown)
    assert registry.list_models().count == 0
    with pytest.raises(NotFoundError, match="init_embedding_models_batched"):
        embedding.embed_batched(on("get_embedding_batched"), text, qwen3, 16)
    assert INITS[2](on)
    again = embedding.embed_batched(on("get_embedding_batched"), text, qwen3, 16)
    assert np.array_equal(again.data, first.data)


def test_mmbert_answers_after_the_layers_that_its_files_list(
    registry: Registry, on: For, copy_golden: CopyGolden
) -> None:
    folder = copy_golden("mmbert-embed-mean", {"config.json": {"matryoshka_layers": [2]}})
    context = on("init_embedding_models_with_mmbert")
    paths = (PATHS["qwen3"], PATHS["gemma"], OptionalName(str(folder)))
    assert embedding.load_embeddings_with_mmbert(context, *paths, True)
    handle = registry.find("candle/mmbert-embedding")
    early, whole = by_name(on, "mmbert", 2), by_name(on, "mmbert")
    expected = registry.embed(handle, [b"the law of math"], RunOptions(layer=2))
    assert np.array_equal(early.data, expected.values[0])
    assert not np.allclose(early.data, whole.data, atol=1e-2)
    for layer in (4, 0, -1):  # it has four
        assert np.array_equal(by_name(on, "mmbert", layer).data, whole.data)
    for layer in (1, 3, 5):
        with pytest.raises(InvalidArgumentError, match=f"layer is {layer}"):
            by_name(on, "mmbert", layer)
    for name in ("qwen3", "gemma"):  # they have no such option
        assert np.array_equal(by_name(on, name, 1).data, by_name(on, name).data)


def test_mmbert_answers_after_the_advertised_layers_where_none_are_listed(on: For) -> None:
    load_all(on)
    early, whole = by_name(on, "mmbert", 3), by_name(on, "mmbert")
    assert not np.allclose(early.data, whole.data, atol=1e-2)
    assert np.linalg.norm(early.data) == pytest.approx(1, abs=1e-6)
    assert np.array_equal(by_name(on, "mmbert", 4).data, whole.data)
    for layer in (1, 2, 6, 22):  # it has four
        with pytest.raises(InvalidArgumentError, match=f"layer is {layer}"):
            by_name(on, "mmbert", layer)


def test_no_prompt_is_put_before_a_text(on: For, copy_golden: CopyGolden) -> None:
    prompts = {"prompts": {"query": "search: "}, "default_prompt_name": "query"}
    folder = copy_golden("qwen3-embed-last", {"config_sentence_transformers.json": prompts})
    context = on("init_embedding_models")
    assert embedding.load_embeddings(context, OptionalName(str(folder)), NONE, True)
    case = json.loads((GOLDEN / "qwen3-embed-last" / "expected.json").read_text())["cases"][0]
    found = by_name(on, "qwen3", text=case["text"].encode())
    assert found.data == pytest.approx(np.array(case["embedding"]), abs=1e-4)


def test_vectors_have_unit_length_whatever_the_folder_says(
    registry: Registry, on: For, copy_golden: CopyGolden
) -> None:
    modules = json.loads((GOLDEN / "mmbert-embed-mean" / "modules.json").read_text())
    kept = [each for each in modules if "Normalize" not in each["type"]]
    assert len(kept) < len(modules)
    folder = copy_golden("mmbert-embed-mean", {"modules.json": json.dumps(kept)})
    context = on("init_embedding_models_with_mmbert")
    path = OptionalName(str(folder))
    assert embedding.load_embeddings_with_mmbert(context, NONE, NONE, path, True)
    plain = registry.embed(registry.find("candle/mmbert-embedding"), [b"the law of math"])
    vector = by_name(on, "mmbert").data
    assert np.linalg.norm(plain.values[0]) != pytest.approx(1, abs=1e-3)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("loaded", "for_quality", "for_latency"),
    [
        (("qwen3", "gemma"), "qwen3", "gemma"),
        (("qwen3", "mmbert"), "qwen3", "mmbert"),
        (("gemma", "mmbert"), "mmbert", "gemma"),
        (("qwen3",), "qwen3", "qwen3"),
        (("gemma",), "gemma", "gemma"),
        (("mmbert",), "mmbert", "mmbert"),
    ],
)
def test_what_is_loaded_answers(
    on: For, loaded: Sequence[str], for_quality: str, for_latency: str
) -> None:
    paths = [PATHS[name] if name in loaded else NONE for name in FOLDERS]
    context = on("init_embedding_models_with_mmbert")
    assert embedding.load_embeddings_with_mmbert(context, paths[0], paths[1], paths[2], True)
    text, auto, names = Text(b"law"), Name("auto"), list(FOLDERS)
    smart = on("get_embedding_smart")
    assert names[embedding.embed_smart(smart, text, 1.0, 0.0).model_type] == for_quality
    assert names[embedding.embed_smart(smart, text, 0.0, 1.0).model_type] == for_latency
    pair = embedding.compare_embeddings(
        on("calculate_embedding_similarity"), text, Text(b"math"), auto, 0
    )
    assert names[pair.model_type] == for_quality
    ranking = on("calculate_similarity_batch")
    for word, name in ((b"law ", for_latency), (b"law " * 200, for_quality)):
        found = embedding.rank_embeddings(ranking, Text(word), Texts([word]), 0, auto, 0)
        assert names[found.model_type] == name


def test_models_are_listed_as_the_registry_has_them(registry: Registry, on: For) -> None:
    context = on("get_embedding_models_info")
    with pytest.raises(NotFoundError, match="no embedding model"):
        embedding.list_embeddings(context)
    load_all(on)
    found = embedding.list_embeddings(context).models
    assert [each.model_name for each in found] == list(FOLDERS)
    for each, slot in zip(found, ("qwen3", "gemma", "mmbert-embedding"), strict=True):
        info = registry.info(registry.find(f"candle/{slot}"))
        assert each[1:] == (True, info.max_tokens, info.dimension, info.path)
    registry.unload(registry.find("candle/qwen3"), 1000)
    registry.unload(registry.find("candle/mmbert-embedding"), 1000)
    found = embedding.list_embeddings(context).models
    assert [(each.model_name, each.is_loaded) for each in found] == [
        ("qwen3", False),
        ("gemma", True),
    ]
    assert found[0] == ("qwen3", False, 0, 0, "")


def test_comparisons_name_only_two_models(on: For) -> None:
    load_all(on)
    pair = Text(b"one"), Text(b"two")
    for name in ("mmbert", "multimodal", "QWEN3", ""):
        with pytest.raises(InvalidArgumentError, match="qwen3, gemma"):
            embedding.compare_embeddings(on("calculate_embedding_similarity"), *pair, Name(name), 0)
        with pytest.raises(InvalidArgumentError, match="qwen3, gemma"):
            embedding.rank_embeddings(
                on("calculate_similarity_batch"), pair[0], Texts([pair[1]]), 0, Name(name), 0
            )


@pytest.mark.parametrize("bad", [b"\xff", b"a" * ((1 << 20) + 1)])
def test_one_bad_text_fails_the_call(on: For, bad: bytes) -> None:
    load_all(on)
    good, auto = Text(b"good"), Name("auto")
    calls: Sequence[Callable[[], object]] = (
        lambda: by_name(on, "gemma", text=bad),
        lambda: embedding.embed_smart(on("get_embedding_smart"), Text(bad), 0.5, 0.5),
        lambda: embedding.compare_embeddings(
            on("calculate_embedding_similarity"), good, Text(bad), auto, 0
        ),
        lambda: embedding.rank_embeddings(
            on("calculate_similarity_batch"), good, Texts([b"good", bad]), 1, auto, 0
        ),
    )
    for call in calls:
        with pytest.raises(SemanticError, match=r"UTF-8|bytes"):
            call()


def test_media_are_not_answered(on: For) -> None:
    load_all(on)
    with pytest.raises(NotFoundError, match="no embedding model multimodal"):
        by_name(on, "multimodal")


# ---- Selectors

LAYER = {"type": "linear", "in_features": 2, "out_features": 2, "weight": [[1, 0], [0, 1]]}
SELECTOR = json.dumps(
    {
        "algorithm": "mlp",
        "trained": True,
        "model_names": ["a", "b"],
        "feature_dim": 2,
        "n_classes": 2,
        "hidden_sizes": [],
        "dropout": 0.0,
        "layers": [LAYER],
    }
)


def test_selectors_live_until_they_are_freed(registry: Registry, on: For) -> None:
    fresh = Address(selecting.new_selector(on("candle_mlp_new")))
    read = Address(selecting.selector_from_json(on("candle_mlp_from_json"), Name(SELECTOR)))
    query = Doubles(np.array([1.0, 2.0]))
    choose, trained, free = (on(f"candle_mlp_{name}") for name in ("select", "is_trained", "free"))
    assert selecting.select(choose, read, query) == "b"
    assert [selecting.is_trained(trained, each) for each in (fresh, read)] == [0, 1]
    with pytest.raises(NotReadyError):
        selecting.select(choose, fresh, query)
    text = selecting.selector_to_json(on("candle_mlp_to_json"), read)
    registry.cleanup(1000)  # selectors are no models
    assert selecting.select(choose, read, query) == "b"
    selecting.free_selector(free, read)
    again = Address(selecting.selector_from_json(on("candle_mlp_from_json"), Name(text)))
    assert again not in (fresh, read)
    for verb in (selecting.selector_to_json, selecting.is_trained, selecting.free_selector):
        with pytest.raises(ClosedError):
            verb(free, read)
    with pytest.raises(ClosedError):
        selecting.select(choose, read, query)
    assert selecting.select(choose, again, query) == "b"
    selecting.free_selector(free, again)
    selecting.free_selector(free, fresh)


@pytest.mark.parametrize(
    ("device_type", "dtype", "told"), [(0, 0, ""), (0, 9, ""), (1, 1, "CUDA"), (2, 2, "Metal")]
)
def test_another_device_is_told_of(
    registry: Registry, on: For, device_type: int, dtype: int, told: str
) -> None:
    lines: list[tuple[LogLevel, str]] = []
    registry.log.send_to(lambda level, line: lines.append((level, line)))
    new = on("candle_mlp_new_with_device_and_dtype")
    from_json = on("candle_mlp_from_json_with_device_and_dtype")
    made = (
        selecting.new_selector(new, device_type, dtype),
        selecting.selector_from_json(from_json, Name(SELECTOR), device_type, dtype),
    )
    for handle in made:
        selecting.free_selector(on("candle_mlp_free"), Address(handle))
    expected = [
        f"{each.row.function}: selectors run on the CPU, not on {told}" for each in (new, from_json)
    ]
    assert lines == ([(LogLevel.WARNING, line) for line in expected] if told else [])
