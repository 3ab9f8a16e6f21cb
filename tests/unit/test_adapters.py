"""Adapter folders: what is read of them, what is refused, and the life of the base they share."""

import gc
import json
import os
import re
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from libsemantic.engine import opening
from libsemantic.engine.adapters import read_adapter
from libsemantic.engine.bases import Base
from libsemantic.engine.config import AdapterMode, LoadOptions, Precision, RuntimeOptions, Task
from libsemantic.engine.errors import (
    BadArtifactError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    SemanticError,
    UnsupportedError,
)
from libsemantic.engine.registry import Registry
from libsemantic.engine.sharing import Shelf
from libsemantic.engine.ticket import Ticket

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
BASE = GOLDEN / "modernbert-lora-base"
DOMAIN, GUARD = (str(BASE / "adapters" / name) for name in ("domain", "guard"))
TEXT = "What is the derivative of x squared?"
LAYER = "base_model.model.model.layers.1.attn.Wo"

CopyGolden = Callable[[str, Mapping[str, object]], Path]
Arrays = dict[str, NDArray[np.float32]]
Change = Callable[[Arrays], object]

modes = pytest.mark.parametrize("mode", AdapterMode)


@pytest.fixture
def guard(copy_golden: CopyGolden) -> Callable[..., Path]:
    """Give a function that copies the base and the adapter in it, with changes to the latter."""

    def copy(
        config: Mapping[str, object] | None = None,
        change: Change | None = None,
        files: Mapping[str, object] | None = None,
    ) -> Path:
        changes = {f"adapters/guard/{file}": content for file, content in (files or {}).items()}
        changes["adapters/guard/adapter_config.json"] = config or {}
        folder = copy_golden("modernbert-lora-base", changes) / "adapters" / "guard"
        if change is not None:
            path = folder / "adapter_model.safetensors"
            arrays = load_file(path)
            change(arrays)
            save_file(arrays, path)
        return folder

    return copy


def logits(registry: Registry, handle: int) -> NDArray[np.float32]:
    row: NDArray[np.float32] = registry.classify(handle, [TEXT]).logits[0]
    return row


# ---- what is refused

Refusal = tuple[Mapping[str, object], Change | None, type[SemanticError], str]


def drop(name: str) -> Change:
    return lambda arrays: arrays.pop(name)


def rename(old: str, new: str) -> Change:
    return lambda arrays: arrays.update({new: arrays.pop(old)})


def put(name: str, *shape: int) -> Change:
    return lambda arrays: arrays.update({name: np.ones(shape, np.float32)})


UNSUPPORTED: dict[str, Refusal] = {
    f"{key} {value!r}": ({key: value}, None, UnsupportedError, f"{key!r}.*{re.escape(found)}")
    for key, value, found in (
        ("peft_type", "LOHA", "'LOHA'; supported is 'LORA'"),
        ("peft_type", None, "None; supported is 'LORA'"),
        ("task_type", "CAUSAL_LM", "'CAUSAL_LM'; supported are 'SEQ_CLS'"),
        ("use_dora", True, "True"),
        ("use_qalora", True, "True"),
        ("use_anything_new", True, "True"),
        ("bias", "all", "'all', which is not supported; supported is 'none'"),
        ("lora_bias", True, "True"),
        ("fan_in_fan_out", True, "True"),
        ("layer_replication", [[0, 2]], "[[0, 2]]"),
        ("trainable_token_indices", [3], "[3]"),
        ("target_parameters", ["weight"], "['weight']"),
        ("alora_invocation_tokens", [1], "[1]"),
        ("init_lora_weights", "pissa", "'pissa'"),
        ("init_lora_weights", "olora", "'olora'"),
        ("use_bdlora", {"nblocks": 2}, "{'nblocks': 2}"),
        ("target_modules", "(a+)+b", "repeats a group"),
        ("target_modules", "(?=a)b", "a special one"),
        ("target_modules", "(Wo", "unterminated"),
        ("target_modules", ".*" * 6, "too much"),
        ("target_modules", "a?" * 12 + "a" * 12, "too much"),
        ("target_modules", "(a|a)" * 30, "too much"),
        ("exclude_modules", "x" * 2001, "2000 characters"),
        ("rank_pattern", {"(a*)*": 3}, "repeats a group"),
    )
}
WRONG: dict[str, Refusal] = {
    "no rank": ({"r": None}, None, BadArtifactError, "'r' is None.*whole number"),
    "a rank of 0": ({"r": 0}, None, BadArtifactError, "'r' is 0"),
    "a rank in words": ({"r": "8"}, None, BadArtifactError, "'r' is '8'"),
    "no alpha": ({"lora_alpha": None}, None, BadArtifactError, "'lora_alpha' is None"),
    "an alpha that is no number": (
        {"lora_alpha": float("nan")},
        None,
        BadArtifactError,
        "'lora_alpha' is nan",
    ),
    "no targets": ({"target_modules": []}, None, BadArtifactError, "'target_modules' names no"),
    "targets of another type": (
        {"target_modules": [1]},
        None,
        BadArtifactError,
        "'target_modules' must list",
    ),
    "layers in words": (
        {"layers_to_transform": ["1"]},
        None,
        BadArtifactError,
        "'layers_to_transform' must list numbers",
    ),
    "another rank": (
        {"r": 4},
        None,
        BadArtifactError,
        "lora_A of 'model.layers.*rank 8, adapter_config.json says 4 .'r' or 'rank_pattern'",
    ),
    "another rank of one layer": (
        {"rank_pattern": {"layers.1.attn.Wo": 3}},
        None,
        BadArtifactError,
        "'model.layers.1.attn.Wo' has rank 8, adapter_config.json says 3",
    ),
    "a layer that is not targeted": (
        {"target_modules": ["Wqkv", "Wo"]},
        None,
        BadArtifactError,
        r"an update of 'model.layers.0.mlp.Wi'.*names no such module in 'target_modules'",
    ),
    "a layer that is taken out": (
        {"exclude_modules": ["mlp.Wi"]},
        None,
        BadArtifactError,
        "an update of 'model.layers.0.mlp.Wi'",
    ),
    "a target without update": (
        {},
        lambda arrays: [arrays.pop(f"{LAYER}.lora_{kind}.weight") for kind in "AB"],
        BadArtifactError,
        "lacks the update of 'layers.1.attn.Wo'.*'target_modules'",
    ),
    "half of an update": (
        {},
        drop(f"{LAYER}.lora_B.weight"),
        BadArtifactError,
        "lora_A.weight' without 'model.layers.1.attn.Wo.lora_B.weight'",
    ),
    "a layer too many": (
        {},
        lambda arrays: arrays.update(
            {
                f"base_model.model.model.layers.9.attn.Wo.lora_{kind}.weight": np.ones(
                    shape, np.float32
                )
                for kind, shape in (("A", (8, 64)), ("B", (64, 8)))
            }
        ),
        BadArtifactError,
        "an update of 'model.layers.9.attn.Wo', the base .* no weight 'layers.9.attn.Wo.weight'",
    ),
    "inputs of another width": (
        {},
        put(f"{LAYER}.lora_A.weight", 8, 32),
        BadArtifactError,
        r"lora_A of 'model.layers.1.attn.Wo' has shape \[8, 32\], the base has 64 .*hidden_size",
    ),
    "outputs of another width": (
        {},
        put(f"{LAYER}.lora_B.weight", 32, 8),
        BadArtifactError,
        r"lora_B of 'model.layers.1.attn.Wo' has shape \[32, 8\], the base has 64 .*hidden_size",
    ),
    "no matrix": (
        {},
        put(f"{LAYER}.lora_A.weight", 512),
        BadArtifactError,
        r"Wo.lora_A.weight' has shape \[512\], not a matrix",
    ),
    "an update of a convolution": (
        {},
        put(f"{LAYER}.lora_A.weight", 8, 64, 3),
        UnsupportedError,
        r"Wo.lora_A.weight' has shape \[8, 64, 3\]: LoRA of a convolution is not supported",
    ),
    "an update of what is no linear layer": (
        {"target_modules": ["Wqkv", "Wo", "Wi", "tok_embeddings"]},
        lambda arrays: arrays.update(
            {
                f"base_model.model.model.embeddings.tok_embeddings.lora_{kind}.weight": np.ones(
                    shape, np.float32
                )
                for kind, shape in (("A", (8, 64)), ("B", (900, 8)))
            }
        ),
        BadArtifactError,
        "an update of 'model.embeddings.tok_embeddings', which is no linear layer of the base",
    ),
    "no updates": (
        {},
        lambda arrays: [arrays.pop(name) for name in list(arrays) if "lora" in name],
        BadArtifactError,
        "no update of any layer",
    ),
    "an unknown tensor": (
        {},
        put("base_model.model.model.layers.0.attn.scale", 1),
        BadArtifactError,
        "'model.layers.0.attn.scale', which is neither lora_A nor lora_B",
    ),
    "a tensor that PEFT did not write": (
        {},
        put("layers.0.attn.Wo.weight", 64, 64),
        BadArtifactError,
        "'layers.0.attn.Wo.weight', which is no weight of PEFT",
    ),
    "a head without its bias": (
        {},
        drop("base_model.model.classifier.bias"),
        BadArtifactError,
        "'classifier.bias'.*missing",
    ),
    "a head that is not there": (
        {},
        lambda arrays: [arrays.pop(name) for name in list(arrays) if ".head." in name],
        BadArtifactError,
        "'head.dense.weight'.*missing",
    ),
    "a head of another width": (
        {},
        put("base_model.model.head.dense.weight", 64, 32),
        BadArtifactError,
        r"'head.dense.weight'.*\[64, 32\].*hidden_size 64, hidden_size 64",
    ),
    "a head of other labels": (
        {},
        lambda arrays: arrays.update(
            {
                "base_model.model.classifier.weight": np.ones((3, 64), np.float32),
                "base_model.model.classifier.bias": np.ones(3, np.float32),
            }
        ),
        BadArtifactError,
        "'num_labels' states 2 labels, weight 'classifier.weight'",
    ),
    "a head that no model has": (
        {"modules_to_save": ["classifier", "head", "score"]},
        put("base_model.model.score.weight", 2, 64),
        BadArtifactError,
        "'score.weight' are no part of this model",
    ),
    "a module that is no head": (
        {"modules_to_save": ["classifier", "head", "final_norm"]},
        put("base_model.model.model.final_norm.weight", 64),
        UnsupportedError,
        "replaces 'final_norm.weight' .'modules_to_save'., which is no part of a head",
    ),
    "DoRA in the file": (
        {},
        put(f"{LAYER}.lora_magnitude_vector", 64),
        UnsupportedError,
        "lora_magnitude_vector': DoRA",
    ),
    "an update of an embedding": (
        {},
        put("base_model.model.model.embeddings.tok_embeddings.lora_embedding_A", 8, 900),
        UnsupportedError,
        "lora_embedding_A': LoRA of an embedding",
    ),
    "a bias in the file": (
        {},
        put(f"{LAYER}.lora_B.bias", 64),
        UnsupportedError,
        "lora_B.bias': a bias of LoRA",
    ),
    "values beyond all numbers": (
        {},
        lambda arrays: arrays[f"{LAYER}.lora_A.weight"].fill(3e38),
        BadArtifactError,
        "NaN|infinit|finite",
    ),
    "an update that is no number": (
        {},
        lambda arrays: arrays[f"{LAYER}.lora_A.weight"].fill(np.nan),
        BadArtifactError,
        "adapter_model.safetensors: the update of '.*' holds NaN or infinity",
    ),
    "an update beyond all numbers once it is scaled": (
        {"lora_alpha": 1000},
        lambda arrays: arrays[f"{LAYER}.lora_B.weight"].fill(3e38),
        BadArtifactError,
        "adapter_model.safetensors: the update of '.*' holds NaN or infinity",
    ),
}


@modes
@pytest.mark.parametrize("refusal", UNSUPPORTED | WRONG)
def test_an_adapter_that_does_not_fit_is_refused(
    registry: Registry, guard: Callable[..., Path], mode: AdapterMode, refusal: str
) -> None:
    config, change, error, message = (UNSUPPORTED | WRONG)[refusal]
    folder = guard(config, change)
    with pytest.raises(error, match=message) as raised:
        registry.load(str(folder), LoadOptions(adapter_mode=mode))
    assert str(folder.parents[1]) in raised.value.message or "weight" in raised.value.message
    assert "\n" not in raised.value.message
    assert registry.list_models().count == 0
    owners = registry.stats().memory_owner
    assert owners == ("tokenizers", "interpreter")


def test_an_adapter_for_another_base_is_refused(registry: Registry) -> None:
    for base in ("bert-seq", "distilbert-seq"):
        message = (
            f"an update of 'model.layers.*base .*{base}.* has no weight '.*layers.*another base"
        )
        with pytest.raises(BadArtifactError, match=message):
            registry.load(GUARD, LoadOptions(base_path=str(GOLDEN / base)))
    assert registry.list_models().count == 0


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "model_type"])
def test_a_config_beside_the_adapter_must_be_that_of_the_base(
    registry: Registry, guard: Callable[..., Path], key: str
) -> None:
    config = json.loads((BASE / "config.json").read_text())
    wrong = config | {key: "bert" if key == "model_type" else 7}
    with pytest.raises(BadArtifactError, match=f"config.json: '{key}' is .* has {config[key]!r}"):
        registry.load(str(guard(files={"config.json": wrong})))


# ---- what is read


def without_one_update(arrays: dict[str, NDArray[np.float32]]) -> None:
    for kind in "AB":
        del arrays[f"{LAYER}.lora_{kind}.weight"]


@pytest.mark.parametrize(
    "excluded", [["model.layers.1.attn.Wo"], r"model\.layers\.1\.attn\.Wo", ["1.attn.Wo"]]
)
def test_a_layer_that_is_taken_out_by_any_of_its_names_needs_no_update(
    registry: Registry, guard: Callable[..., Path], excluded: object
) -> None:
    folder = guard({"exclude_modules": excluded}, without_one_update)
    found = logits(registry, registry.load(str(folder), LoadOptions(name="less")))
    assert np.abs(found - logits(registry, registry.load(GUARD))).max() > 0.01


@pytest.mark.parametrize("saved", ["model.layers.1.attn.Wo", "layers.1.attn.Wo", "1.attn.Wo"])
def test_a_saved_module_that_is_not_there_is_not_taken_from_the_base(
    registry: Registry, guard: Callable[..., Path], saved: str
) -> None:
    folder = guard({"modules_to_save": ["classifier", "head", saved]}, without_one_update)
    with pytest.raises(BadArtifactError, match=r"'layers.1.attn.Wo.weight' .* is missing"):
        registry.load(str(folder))


def test_the_base_is_the_one_given_or_the_one_recorded(
    registry: Registry, guard: Callable[..., Path], tmp_path: Path
) -> None:
    expected = logits(registry, registry.load(GUARD, LoadOptions(name="expected")))
    moved = tmp_path / "elsewhere"
    shutil.copytree(GUARD, moved)
    nowhere = "answerdotai/ModernBERT-base"
    for recorded in (nowhere, "", None, "x" * 5000, "\0"):
        path = moved / "adapter_config.json"
        content = json.loads(path.read_text()) | {"base_model_name_or_path": recorded}
        path.write_text(json.dumps(content))
        with pytest.raises(NotFoundError, match=r"base_model_name_or_path.*base_path") as raised:
            registry.load(str(moved))
        assert repr(recorded or "")[:100] in raised.value.message
    handle = registry.load(str(moved), LoadOptions(base_path=str(BASE)))
    np.testing.assert_array_equal(logits(registry, handle), expected)
    absolute = guard({"base_model_name_or_path": str(BASE)})
    handle = registry.load(str(absolute), LoadOptions(name="absolute"))
    np.testing.assert_array_equal(logits(registry, handle), expected)
    info = registry.info(handle)
    details = json.loads(info.json)["adapter"]
    assert details["base_path"] == str(BASE)
    assert (details["mode"], details["rank"], details["alpha"]) == ("shared", 8, 32.0)
    files = dict(zip(info.file_names, info.file_sizes.tolist(), strict=True))
    for name, size in files.items():
        assert Path(absolute / name).stat().st_size == size
    assert os.path.relpath(BASE / "model.safetensors", absolute) in files
    assert "adapter_model.safetensors" in files
    assert info.mapped_bytes == files["adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("base", "error", "message"),
    [
        ("nowhere", NotFoundError, "nowhere"),
        ("expected.json", InvalidArgumentError, "not a folder"),
        ("adapters", NotFoundError, "adapters, the base of the adapter .*no config.json"),
        ("adapters/domain", NotFoundError, "domain, the base of the adapter .*no config.json"),
    ],
)
def test_a_base_that_is_none(
    registry: Registry, base: str, error: type[SemanticError], message: str
) -> None:
    with pytest.raises(error, match=message):
        registry.load(GUARD, LoadOptions(base_path=str(BASE / base)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (LoadOptions(task=Task.EMBEDDING), UnsupportedError, "for sequence_classification, not"),
        (LoadOptions(precision=Precision.BF16), UnsupportedError, "BF16, but in FP32, INT8"),
        (LoadOptions(max_tokens=513), InvalidArgumentError, "512 positions"),
        (LoadOptions(timeout_ms=1), DeadlineError, "timeout_ms 1"),
    ],
)
def test_options_of_an_adapter(
    registry: Registry, options: LoadOptions, error: type[SemanticError], message: str
) -> None:
    with pytest.raises(error, match=message):
        registry.load(GUARD, options)
    assert registry.list_models().count == 0
    assert registry.stats().memory_owner == ("tokenizers", "interpreter")


def test_a_base_in_onnx_only_is_refused(registry: Registry, guard: Callable[..., Path]) -> None:
    folder = guard()
    (folder.parents[1] / "model.safetensors").rename(folder.parents[1] / "model.bin")
    with pytest.raises(NotFoundError, match=r"the base of the adapter .* has no weights"):
        registry.load(str(folder))


def test_missing_and_pickled_weights(registry: Registry, guard: Callable[..., Path]) -> None:
    folder = guard()
    path = folder / "adapter_model.safetensors"
    path.rename(folder / "adapter_model.bin")
    with pytest.raises(BadArtifactError, match="only as a pickle"):
        registry.load(str(folder))
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(NotFoundError, match=r"adapter_model.safetensors is missing"):
        registry.load(str(folder))


def test_labels_and_pooling_come_from_the_adapter(
    registry: Registry, guard: Callable[..., Path]
) -> None:
    """From config.json or label_mapping.json; where neither names labels, nothing is invented."""
    expected = logits(registry, registry.load(GUARD, LoadOptions(name="expected")))
    own = {"id2label": {"0": "calm", "1": "storm"}, "classifier_pooling": "mean"}
    folder = guard(files={"config.json": own, "label_mapping.json": {"id2label": own["id2label"]}})
    handle = registry.load(str(folder), LoadOptions(name="own config"))
    assert registry.info(handle).labels == ("calm", "storm")
    np.testing.assert_array_equal(logits(registry, handle), expected)
    pooled = guard(files={"label_mapping.json": {"classifier_pooling": "cls"}})
    handle = registry.load(str(pooled), LoadOptions(name="other pooling"))
    assert np.abs(logits(registry, handle) - expected).max() > 0.1
    contrary = own | {"classifier_pooling": "cls"}
    with pytest.raises(
        BadArtifactError, match=r"'classifier_pooling' is 'mean', config.json .*'cls'"
    ):
        registry.load(str(guard(files={"config.json": contrary})))
    silent = guard()
    (silent / "label_mapping.json").unlink()
    with pytest.raises(BadArtifactError, match="no label file beside it"):
        registry.load(str(silent))


def test_unknown_keys_are_told_and_known_ones_are_not(
    registry: Registry, guard: Callable[..., Path]
) -> None:
    folder = guard({"my_note": "x", "megatron_core": "other", "revision": "main"})
    warnings = registry.info(registry.load(str(folder))).warnings
    assert warnings == (
        "adapter_config.json has keys that are not known and not followed: 'my_note'",
    )


def test_a_folder_with_weights_of_its_own_is_a_model(
    registry: Registry, guard: Callable[..., Path]
) -> None:
    folder = guard().parents[1]
    shutil.copy(folder / "adapters" / "guard" / "adapter_config.json", folder)
    told = registry.info(registry.load(str(folder), LoadOptions(name="silent"))).warnings
    shutil.copy(folder / "adapters" / "guard" / "adapter_model.safetensors", folder)
    handle = registry.load(str(folder), LoadOptions())
    assert registry.info(handle).task is Task.EMBEDDING
    warning = (
        "the folder has weights of its own, so its adapter (adapter_model.safetensors) is not used"
    )
    assert sorted((*told, warning)) == sorted(registry.info(handle).warnings)
    assert json.loads(registry.info(handle).json)["adapter"] is None


TARGETS = {
    "ends of names": ({"target_modules": ["attn.Wo", "Wi"]}, ["attn.Wo", "mlp.Wi"]),
    "an end is whole": ({"target_modules": ["o", "i"]}, []),
    "all": ({"target_modules": "all-linear"}, ["attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo"]),
    "an expression": ({"target_modules": r".*\.(attn|mlp)\.Wo"}, ["attn.Wo", "mlp.Wo"]),
    "the whole name": ({"target_modules": r"attn\.Wo"}, []),
    "without some": (
        {"target_modules": "all-linear", "exclude_modules": ["Wo"]},
        ["attn.Wqkv", "mlp.Wi"],
    ),
    "without an expression": (
        {"target_modules": ["Wo", "Wi"], "exclude_modules": r".*mlp.*"},
        ["attn.Wo"],
    ),
    "some layers": (
        {"target_modules": ["Wo"], "layers_to_transform": [0, 2]},
        ["attn.Wo", "mlp.Wo"],
    ),
    "one layer": ({"target_modules": ["Wo"], "layers_to_transform": 2}, ["attn.Wo", "mlp.Wo"]),
    "other layers": ({"target_modules": ["Wo"], "layers_to_transform": [1]}, []),
    "layers of another list": (
        {"target_modules": ["Wo"], "layers_to_transform": [2], "layers_pattern": "blocks"},
        [],
    ),
    "a part that is replaced": (
        {"target_modules": ["Wo"], "modules_to_save": ["mlp"]},
        ["attn.Wo"],
    ),
}


@pytest.mark.parametrize("case", TARGETS)
def test_which_layers_an_adapter_changes(guard: Callable[..., Path], case: str) -> None:
    config, expected = TARGETS[case]
    adapter = read_adapter(guard(config))
    names = ["attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo"]
    found = [name for name in names if adapter.changes(f"model.layers.2.{name}")]
    assert found == expected


def test_ranks_and_scales_by_pattern(guard: Callable[..., Path]) -> None:
    config = {
        "r": 8,
        "lora_alpha": 16,
        "rank_pattern": {"Wqkv": 2, r"layers\.[12]\.attn\.Wo": 4},
        "alpha_pattern": {"^model.layers.3": 5, "^model.layers.0.mlp.Wi": 3, "Wi": 6},
    }
    adapter = read_adapter(guard(config))
    expected = {
        "model.layers.0.attn.Wqkv": (2, 8.0),
        "model.layers.0.attn.Wo": (8, 2.0),
        "model.layers.1.attn.Wo": (4, 4.0),
        "model.layers.11.attn.Wo": (8, 2.0),
        "model.layers.3.attn.Wo": (8, 2.0),  # a pattern must reach the end of a name
        "model.layers.0.mlp.Wi": (8, 0.375),
        "model.layers.1.mlp.Wi": (8, 0.75),
        "model.layers.1.mlp.xWi": (8, 2.0),
    }
    for name, (rank, scale) in expected.items():
        assert (adapter.rank_of(name), adapter.scale_of(name)) == (rank, scale), name
    stable = replace(adapter, stabilised=True)
    assert stable.scale_of("model.layers.1.attn.Wo") == 16 / 4**0.5


# ---- the life of a base


class Watched:
    """The bases that were opened."""

    def __init__(self) -> None:
        self.opened: list[weakref.ref[Base]] = []

    @property
    def alive(self) -> int:
        return sum(base() is not None for base in self.opened)


@pytest.fixture
def bases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Watch bases; without the cycle collector, so that cycles show."""
    watched = Watched()
    right: Callable[..., Base] = opening._open_base

    def open_base(*arguments: object, **named: object) -> Base:
        base = right(*arguments, **named)
        watched.opened.append(weakref.ref(base))
        return base

    monkeypatch.setattr(opening, "_open_base", open_base)
    gc.collect()
    gc.disable()
    yield watched
    gc.enable()


def owners(registry: Registry) -> list[str]:
    return list(registry.stats().memory_owner[:-2])


def test_a_base_lives_from_its_first_adapter_to_its_last(
    registry: Registry, bases: Watched
) -> None:
    first = registry.load(DOMAIN)
    before = logits(registry, first)
    second = registry.load(GUARD)
    again = registry.load(GUARD, LoadOptions(name="again"))
    assert (len(bases.opened), bases.alive) == (1, 1)
    assert owners(registry) == ["model domain", "model guard", "model again", f"base {BASE}"]
    assert registry.list_models().name == ("domain", "guard", "again")
    np.testing.assert_array_equal(logits(registry, second), logits(registry, again))
    np.testing.assert_array_equal(logits(registry, first), before)
    for handle in (first, again):
        registry.unload(handle, 0)
    assert bases.alive == 1
    assert logits(registry, second).shape == (2,)
    registry.unload(second, 0)
    assert bases.alive == 0
    assert owners(registry) == []
    np.testing.assert_array_equal(logits(registry, registry.load(DOMAIN)), before)
    assert (len(bases.opened), bases.alive) == (2, 1)
    registry.cleanup(0)
    assert bases.alive == 0


def test_a_base_is_shared_by_what_it_is(
    registry: Registry, bases: Watched, guard: Callable[..., Path]
) -> None:
    """Not by its name: other threads, other files, or a file that took the place of another."""
    registry.load(GUARD)
    registry.load(GUARD, LoadOptions(name="threads", intra_op_threads=3))
    assert len(bases.opened) == 2
    copy = guard()
    old = registry.load(str(copy), LoadOptions(name="copy"))
    assert len(bases.opened) == 3
    expected = logits(registry, old)
    folder = copy.parents[1]
    arrays = load_file(folder / "model.safetensors")
    arrays["final_norm.weight"] *= 2
    save_file(arrays, folder / "new.safetensors")
    (folder / "new.safetensors").rename(folder / "model.safetensors")
    new = registry.load(str(copy), LoadOptions(name="replaced file"))
    assert len(bases.opened) == 4
    assert np.abs(logits(registry, new) - expected).max() > 0.01
    np.testing.assert_array_equal(logits(registry, old), expected)
    link = folder.parent / "link"
    link.symlink_to(folder)
    registry.load(GUARD, LoadOptions(name="link", base_path=str(link)))
    assert len(bases.opened) == 4


def test_a_merged_adapter_has_no_base(registry: Registry, bases: Watched) -> None:
    handle = registry.load(GUARD, LoadOptions(adapter_mode=AdapterMode.MERGED))
    assert bases.opened == []
    info = registry.info(handle)
    assert json.loads(info.json)["adapter"]["mode"] == "merged"
    sizes = [(BASE / "model.safetensors"), Path(GUARD) / "adapter_model.safetensors"]
    assert info.mapped_bytes == sum(path.stat().st_size for path in sizes)


def test_the_base_itself_is_not_changed(registry: Registry) -> None:
    """It may be a model beside its adapters; they have nothing to do with each other."""
    model = registry.load(str(BASE))
    before = registry.embed(model, [TEXT]).values
    handle = registry.load(GUARD)
    answered = logits(registry, handle)
    np.testing.assert_array_equal(registry.embed(model, [TEXT]).values, before)
    registry.unload(model, 0)
    np.testing.assert_array_equal(logits(registry, handle), answered)


@modes
def test_replacing(registry: Registry, bases: Watched, mode: AdapterMode) -> None:
    handle = registry.load(DOMAIN, LoadOptions(name="topic"))
    for turn, path in enumerate((GUARD, DOMAIN, GUARD), 2):
        options = LoadOptions(replaces=handle, adapter_mode=mode)
        assert registry.load(path, options) == handle
        info = registry.info(handle)
        assert (info.generation, info.name) == (turn, "topic")
        assert info.labels[0] == ("benign" if path == GUARD else "biology")
        assert logits(registry, handle).shape == (len(info.labels),)
    assert bases.alive == (1 if mode is AdapterMode.SHARED else 0)
    model = registry.load(str(GOLDEN / "bert-seq"), LoadOptions(replaces=handle))
    assert bases.alive == 0
    registry.unload(model, 0)


def test_a_failed_adapter_leaves_the_base_to_others(
    registry: Registry, bases: Watched, guard: Callable[..., Path]
) -> None:
    """Also one that fails after its base was opened: its self-test finds infinities."""
    broken = guard(change=lambda arrays: arrays[f"{LAYER}.lora_A.weight"].fill(3e38))
    with pytest.raises(BadArtifactError):
        registry.load(str(broken))
    assert (len(bases.opened), bases.alive) == (1, 0)
    whole = broken.parent / "domain"
    handle = registry.load(str(whole))
    expected = logits(registry, handle)
    with pytest.raises(BadArtifactError):
        registry.load(str(broken))
    assert (len(bases.opened), bases.alive) == (2, 1)
    np.testing.assert_array_equal(logits(registry, handle), expected)


def test_the_memory_of_a_base_is_counted_once(registry: Registry) -> None:
    registry.init(RuntimeOptions())
    handles = [registry.load(path) for path in (DOMAIN, GUARD)]
    stats = registry.stats()
    memory = dict(zip(stats.memory_owner, stats.memory_bytes.tolist(), strict=True))
    stated = [json.loads(registry.info(handle).json) for handle in handles]
    assert memory[f"base {BASE}"] == stated[0]["adapter"]["base_grown_bytes"]
    assert stated[0]["adapter"]["base_grown_bytes"] == stated[1]["adapter"]["base_grown_bytes"]
    assert all(each["grown_bytes"] >= memory[f"model {each['name']}"] for each in stated)
    assert stated[0]["adapter"]["base_mapped_bytes"] == (BASE / "model.safetensors").stat().st_size


# ---- what is shared in general


class Thing:
    """Something that can be held weakly."""


def test_a_shelf_keeps_nothing_alive() -> None:
    shelf = Shelf[Thing]()
    made: list[weakref.ref[Thing]] = []

    def make() -> Thing:
        thing = Thing()
        made.append(weakref.ref(thing))
        return thing

    first = shelf.share("a", make, Ticket())
    assert shelf.share("a", make, Ticket()) is first
    assert shelf.share("b", make, Ticket()) is not first
    assert len(made) == 2
    assert made[1]() is None
    del first
    assert made[0]() is None
    shelf.share("a", make, Ticket())
    assert len(made) == 3


def test_a_shelf_makes_one_thing_for_many() -> None:
    shelf = Shelf[Thing]()
    makers: list[str] = []
    got: list[Thing] = []
    barrier = threading.Barrier(8)

    def make() -> Thing:
        makers.append(threading.current_thread().name)
        time.sleep(0.05)
        if len(makers) == 1:
            raise InternalError("injected")
        return Thing()

    def take() -> None:
        barrier.wait(10)
        try:
            got.append(shelf.share("a", make, Ticket()))
        except InternalError:
            got.append(Thing())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(makers) == 2  # the first one failed; one of those who waited tried again
    assert len(got) == 8
    assert len({id(thing) for thing in got}) == 2


def test_who_waits_for_a_shelf_has_a_deadline() -> None:
    shelf = Shelf[Thing]()
    entered, ended = threading.Event(), threading.Event()

    def make() -> Thing:
        entered.set()
        assert ended.wait(10)
        return Thing()

    held: list[Thing] = []
    thread = threading.Thread(target=lambda: held.append(shelf.share("a", make, Ticket())))
    thread.start()
    assert entered.wait(10)
    with pytest.raises(DeadlineError):
        shelf.share("a", make, Ticket(timeout_ms=30))
    other = shelf.share("b", Thing, Ticket())  # another thing need not wait
    ended.set()
    thread.join(10)
    assert shelf.share("a", Thing, Ticket()) is held[0] is not other
