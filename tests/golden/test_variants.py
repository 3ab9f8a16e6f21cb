"""Variants of the families that no golden folder has: equal to transformers."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from libsemantic.engine.config import Task
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.weights import read_weights

from .graph_runs import GOLDEN_TOLERANCE, Runner, write_file
from .variants import VARIANTS, inputs

TASKS = {
    "ForSequenceClassification": Task.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "Model": Task.EMBEDDING,
}


@cache
def answers(name: str) -> list[list[float]]:
    """Return what transformers says of each row, flat; of a hidden state the first 3 values."""
    content = json.loads((Path(__file__).parent / "expected_variants.json").read_text())
    assert content["answers"].keys() == VARIANTS.keys()
    rows: list[list[float]] = content["answers"][name]
    return rows


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_variants_equal_transformers(tmp_path: Path, name: str, fused: bool) -> None:
    variant = VARIANTS[name]
    write_file(tmp_path / "model.safetensors", variant.arrays(), lambda _: "F32")
    task, weights = TASKS[variant.task], read_weights(tmp_path)
    graph = build_graph(variant.full_config(), task, weights, fused=fused)
    runner, feeds = Runner(graph), inputs(variant)
    ids, mask, types = feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"]
    outputs = runner.run(ids, mask, types)
    for row, expected in enumerate(answers(name)):
        if task is Task.SEQUENCE_CLASSIFICATION:
            if not mask[row, 0]:  # the head would look at padding
                continue
            found, values = outputs[row], np.array(expected)
        else:
            kept = mask[row] == 1
            width = 3 if task is Task.EMBEDDING else variant.labels
            found = outputs[row][kept, :width]
            values = np.array(expected).reshape(-1, width)[kept]
        assert found.shape == values.shape
        assert np.abs(found - values).max() <= GOLDEN_TOLERANCE
        assert np.abs(values).max() > 0.05
        alone = runner.run(*(feed[row : row + 1] for feed in (ids, mask, types)))[0]
        assert np.abs(alone - outputs[row]).max() <= GOLDEN_TOLERANCE
