"""What an embedding graph ends in, against the same steps in numpy on its token states."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from libsemantic.engine.config import Task
from libsemantic.engine.dense import DenseLayer
from libsemantic.engine.graphs import EmbeddingEnd, build_graph
from libsemantic.engine.postprocess import POOLING_MODES, pooling
from libsemantic.engine.weights import read_weights

MODELS = Path(__file__).parent / "models"
LENGTHS = (5, 9, 1, 12)  # of rows in one padded run

Array = NDArray[np.float32]


def run(folder: Path, end: EmbeddingEnd | None, layer: int = 0) -> Array:
    """Run the graph, or the part of it up to an exit, on random ids."""
    config = json.loads((folder / "config.json").read_text())
    exits = (layer,) if layer else ()
    graph = build_graph(config, Task.EMBEDDING, read_weights(folder), exits=exits, end=end)
    ids = np.random.default_rng(3).integers(5, 60, (len(LENGTHS), max(LENGTHS)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    feeds = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": 0 * ids}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
    )
    session = onnxruntime.InferenceSession(
        graph.parts[0].model if layer else graph.model, options, ["CPUExecutionProvider"]
    )
    output: Array = session.run([graph.output], {name: feeds[name] for name in graph.inputs})[0]
    return output


def pooled(states: Array, *modes: str) -> Array:
    pool = pooling(modes)
    rows = zip(states, LENGTHS, strict=True)
    return np.array([pool(row[:length]) for row, length in rows])


def polar(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.hstack([vectors / np.where(lengths == 0, 1, lengths), lengths])


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_each_pooling_leaves_padding_out(mode: str) -> None:
    folder = MODELS / "bert-embed-mean"
    wanted = polar(pooled(run(folder, None), mode))
    found = run(folder, EmbeddingEnd((mode,), ()))
    assert found.shape == (4, 65)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_all_poolings_are_joined_in_the_order_of_the_reference() -> None:
    folder = MODELS / "bert-embed-mean"
    end = EmbeddingEnd(tuple(reversed(POOLING_MODES)), ())
    wanted = polar(pooled(run(folder, None), *POOLING_MODES))
    np.testing.assert_allclose(run(folder, end), wanted, rtol=0, atol=2e-4)


def test_dense_layers_follow_in_their_order() -> None:
    folder, random = MODELS / "bert-embed-cls", np.random.default_rng(4)
    first = random.normal(size=(16, 64)).astype(np.float32)
    second = random.normal(size=(8, 16)).astype(np.float32)
    bias = random.normal(size=8).astype(np.float32)
    mode = "pooling_mode_cls_token"
    end = EmbeddingEnd((mode,), (DenseLayer(first, None, "Tanh"), DenseLayer(second, bias, "ReLU")))
    inner = np.tanh(pooled(run(folder, None), mode) @ first.T)
    wanted = polar(np.maximum(inner @ second.T + bias, 0))
    np.testing.assert_allclose(run(folder, end), wanted, rtol=0, atol=2e-5)


def test_an_early_exit_ends_like_the_whole() -> None:
    folder, mode = MODELS / "mmbert-embed-mean", "pooling_mode_mean_tokens"
    states, early = run(folder, None, 1), run(folder, EmbeddingEnd((mode,), ()), 1)
    np.testing.assert_allclose(early, polar(pooled(states, mode)), rtol=0, atol=2e-5)
    assert np.abs(early - run(folder, EmbeddingEnd((mode,), ()))).max() > 0.1


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_vector_without_direction_shows_in_its_length(value: float) -> None:
    weight = np.full((4, 64), value, np.float32)
    end = EmbeddingEnd(("pooling_mode_cls_token",), (DenseLayer(weight, None, "Identity"),))
    found = run(MODELS / "bert-embed-cls", end)
    if value == 0.0:
        assert not found.any()
    else:
        assert not np.isfinite(found[:, -1]).any()
