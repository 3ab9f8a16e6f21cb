"""Weights of every family in every form that checkpoints have: the answers stay the same.

A new family is a row of ``FORMS``.
"""

import gc
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from libsemantic.engine.config import Output, RunOptions, Task
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights

from .graph_runs import (
    GOLDEN_TOLERANCE,
    GOLDENS,
    MODELS,
    SAME_TOLERANCE,
    Array,
    Runner,
    arrays_of,
    cases_of,
    config_of,
    golden_difference,
    graph_of,
    runner_of,
    stored,
    write_file,
    write_shards,
)


@dataclass(frozen=True, slots=True)
class Form:
    """How a family's checkpoints name their weights.

    ``prefix`` stands before the encoder's, or before none of them; ``heads`` begin the names of
    the others. ``norms`` is how many normalisations of the golden have both scale and shift.
    ``language``: weights of the language model that an embedding model may bring, the first of
    them tied to the embeddings.
    """

    prefix: str
    heads: tuple[str, ...] = ()
    norms: int = 0
    language: tuple[str, ...] = ()


_BERT_LANGUAGE = ("cls.predictions.decoder.weight", "cls.predictions.bias")
_ROBERTA_LANGUAGE = ("lm_head.decoder.weight", "lm_head.layer_norm.bias", "lm_head.dense.bias")
FORMS = {
    "bert-seq": Form("bert.", ("classifier.",), 7),
    "bert-embed-mean": Form("bert.", (), 7, _BERT_LANGUAGE),
    "roberta-seq": Form("roberta.", ("classifier.",), 7),
    "roberta-token": Form("roberta.", ("classifier.",), 7),
    "xlm-roberta-seq": Form("roberta.", ("classifier.",), 7),
    "distilbert-seq": Form("distilbert.", ("classifier.", "pre_classifier."), 7),
    "electra-seq": Form("electra.", ("classifier.",), 7),
    "deberta-v3-seq": Form("deberta.", ("classifier.", "pooler."), 8),
    "modernbert-seq-cls": Form("model.", ("classifier.", "head.")),
    "mmbert-embed-mean": Form(
        "model.", (), 0, ("decoder.weight", "decoder.bias", "head.norm.weight")
    ),
    "qwen3-embed-last": Form("model.", (), 0, ("lm_head.weight",)),
    "gemma3-embed-mean": Form("model.", (), 0, ("lm_head.weight",)),
}
# Language models of families whose golden is a classifier, under the names of their encoder.
LANGUAGES = {
    "roberta-seq": _ROBERTA_LANGUAGE,
    "xlm-roberta-seq": _ROBERTA_LANGUAGE,
    "distilbert-seq": ("vocab_projector.weight", "vocab_transform.bias", "vocab_layer_norm.bias"),
    "electra-seq": ("generator_lm_head.weight", "discriminator_predictions.dense.bias"),
    "deberta-v3-seq": (*_BERT_LANGUAGE, "mask_predictions.dense.bias"),
}
# Ends of the names of the embeddings of tokens.
TABLES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight")
HALVES = ("F16", "BF16")

forms = pytest.mark.parametrize("name", FORMS)
variants = pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])


def test_every_family_that_a_golden_has_is_tested() -> None:
    tested = {config_of(name)["model_type"] for name in FORMS}
    assert tested == {config_of(name)["model_type"] for name in GOLDENS}


def check_same(name: str, runner: Runner, *, fused: bool = True) -> None:
    """Require answers that are equal to the bit to those from the golden's own file."""
    for case in cases_of(name):
        ids = case["input_ids"]
        assert np.array_equal(runner.one(ids), runner_of(name, fused=fused).one(ids))


@forms
@pytest.mark.parametrize("dtype", HALVES)
@variants
def test_half_precision_files_run_in_float32(
    tmp_path: Path, name: str, dtype: str, fused: bool
) -> None:
    arrays = arrays_of(name)
    rounded = {key: stored(array, dtype)[1] for key, array in arrays.items()}
    half = graph_of(tmp_path / "half", name, arrays, dtype, fused=fused)
    full = graph_of(tmp_path / "full", name, rounded, fused=fused)
    assert (half.dtype, full.dtype) == (dtype, "F32")
    runner, reference = Runner(half), Runner(full)
    for case in cases_of(name):
        ids = case["input_ids"]
        assert np.abs(runner.one(ids) - reference.one(ids)).max() <= SAME_TOLERANCE
    # The rounding is to be seen, and nothing else.
    assert GOLDEN_TOLERANCE < golden_difference(name, runner) <= 1.0


@forms
def test_mixed_precision_is_said(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, arrays_of(name), lambda key: "F32" if "norm" in key.lower() else "BF16")
    graph = build_graph(config_of(name), GOLDENS[name].task, read_weights(tmp_path))
    assert graph.dtype == "BF16+F32"
    assert golden_difference(name, Runner(graph)) <= 1.0


@forms
@variants
def test_prefix_may_be_there_or_not(tmp_path: Path, name: str, fused: bool) -> None:
    form, arrays = FORMS[name], arrays_of(name)
    encoder = {key: array for key, array in arrays.items() if not key.startswith(form.heads)}
    if any(key.startswith(form.prefix) for key in encoder):
        renamed = {key.removeprefix(form.prefix): array for key, array in arrays.items()}
    else:
        renamed = {form.prefix + key if key in encoder else key: arrays[key] for key in arrays}
    assert len(renamed.keys() - arrays.keys()) == len(encoder)
    check_same(name, Runner(graph_of(tmp_path, name, renamed, fused=fused)), fused=fused)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.norms])
def test_old_names_of_layer_norms(tmp_path: Path, name: str) -> None:
    def old(key: str) -> str:
        if "norm" not in key.lower():
            return key
        return key.replace(".weight", ".gamma").replace(".bias", ".beta")

    renamed = {old(key): array for key, array in arrays_of(name).items()}
    assert sum(key.endswith(".gamma") for key in renamed) == FORMS[name].norms
    assert sum(key.endswith(".beta") for key in renamed) == FORMS[name].norms
    check_same(name, Runner(graph_of(tmp_path, name, renamed)))


@forms
@pytest.mark.parametrize("form", ["sharded", "cache", "sharded cache", "linked folder"])
def test_form_of_the_files_does_not_matter(tmp_path: Path, name: str, form: str) -> None:
    files, folder = tmp_path / "files", tmp_path / "model"
    files.mkdir()
    if form.startswith("sharded"):
        write_shards(files, arrays_of(name), lambda _: "F32")
    else:
        shutil.copy(MODELS / name / "model.safetensors", files)
    if form.endswith("cache"):
        blobs = tmp_path / "blobs"
        blobs.mkdir()
        folder.mkdir()
        for number, path in enumerate(sorted(files.iterdir())):
            path.rename(blobs / f"{number:040x}")
            (folder / path.name).symlink_to(f"../blobs/{number:040x}")
    else:
        folder.symlink_to(files)
    graph = build_graph(config_of(name), GOLDENS[name].task, read_weights(folder))
    real = tmp_path / ("blobs" if form.endswith("cache") else "files")
    assert graph.weights_folder == Path(os.path.realpath(real))
    check_same(name, Runner(graph))


def language_models() -> list[tuple[str, tuple[str, ...]]]:
    own = [(name, form.language) for name, form in FORMS.items() if form.language]
    return own + list(LANGUAGES.items())


@pytest.mark.parametrize(("name", "language"), language_models())
def test_tied_weights_may_be_stored_twice_or_once(
    tmp_path: Path, name: str, language: tuple[str, ...]
) -> None:
    """The encoder of a language model, which is what sentence-transformers trains further."""
    config, arrays = config_of(name), arrays_of(name)
    heads = FORMS[name].heads
    encoder = {key: array for key, array in arrays.items() if not (heads and key.startswith(heads))}
    table = next(array for key, array in encoder.items() if key.endswith(TABLES))
    extra = {key: np.ones(7, np.float32) for key in language} | {language[0]: table}
    ids = cases_of(name)[0]["input_ids"]
    outputs = []
    for number, more in enumerate(({}, extra)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_file(folder / "model.safetensors", encoder | more, lambda _: "F32")
        graph = build_graph(config, Task.EMBEDDING, read_weights(folder))
        outputs.append(Runner(graph).one(ids))
    assert outputs[0].shape == (len(ids), 64)
    assert np.array_equal(outputs[0], outputs[1])


def values(registry: Registry, handle: int, name: str) -> Array:
    """Return the numbers of one answer of a loaded model."""
    texts = ["math code law", "What is the derivative of x squared?"]
    task = GOLDENS[name].task
    if task is Task.SEQUENCE_CLASSIFICATION:
        return registry.classify(handle, texts).logits
    if task is Task.EMBEDDING:
        return registry.embed(handle, texts).values
    tokens = registry.classify_tokens(handle, texts, RunOptions(output=Output.TOKENS))
    assert tokens.probabilities is not None
    return tokens.probabilities


@forms
@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_a_loaded_model_keeps_the_file_it_was_loaded_from(
    tmp_path: Path, registry: Registry, name: str, how: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(MODELS / name, folder)
    handle = registry.load(str(folder))
    before = values(registry, handle, name)
    path = folder / "model.safetensors"
    if how == "replaced":
        other = tmp_path / "other"
        changed = {key: array * np.float32(1.5) for key, array in arrays_of(name).items()}
        write_file(other, changed, lambda _: "F32")
        other.replace(path)
    else:
        path.unlink()
    np.testing.assert_array_equal(values(registry, handle, name), before)
    if how == "replaced":
        registry.unload(handle, 10_000)
        again = registry.load(str(folder))
        assert np.abs(values(registry, again, name) - before).max() > 1e-3


@pytest.mark.parametrize("steps", [0, 255])
@pytest.mark.parametrize("name", ["bert-embed-mean", "modernbert-lora-base", "qwen3-embed-last"])
def test_a_built_graph_is_all_that_is_left(name: str, steps: int) -> None:
    """What builds it must not wait in memory, in a circle, for a rare collection."""
    weights, config = read_weights(MODELS / name), config_of(name)
    build_graph(config, Task.EMBEDDING, weights, steps=steps)
    gc.collect()
    gc.disable()
    try:
        build_graph(config, Task.EMBEDDING, weights, steps=steps)
        assert gc.collect() == 0
    finally:
        gc.enable()
