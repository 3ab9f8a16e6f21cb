"""Variants of the families that no golden folder has: equal to transformers."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from libsemantic.engine.config import Task
from libsemantic.engine.graphs import Branches, build_graph, grouped_attention
from libsemantic.engine.graphs.builder import DEFAULT_BRANCHES
from libsemantic.engine.weights import read_weights

from .graph_runs import GOLDEN_TOLERANCE, Runner, write_file
from .variants import VARIANTS, inputs

BRANCHES = {"short": DEFAULT_BRANCHES, "long": Branches(0)}
BRANCHING = ("gemma3_text", "modernbert", "qwen3")
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
@pytest.mark.parametrize("branches", BRANCHES)
def test_variants_equal_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fused: bool, branches: str
) -> None:
    variant = VARIANTS[name]
    if branches == "long" and variant.config["model_type"] not in BRANCHING:
        pytest.skip("this family's graph has no branches")
    for rows in ("_NEAR_ROWS", "_FAR_ROWS"):
        monkeypatch.setattr(grouped_attention, rows, 10)  # so that a text has several
    write_file(tmp_path / "model.safetensors", variant.arrays(), lambda _: "F32")
    task, weights = TASKS[variant.task], read_weights(tmp_path)
    config = variant.full_config()
    graph = build_graph(config, task, weights, fused=fused, branches=BRANCHES[branches])
    runner, feeds = Runner(graph), inputs(variant)
    ids, mask, types = feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"]
    outputs = runner.run(ids, mask, types)
    for row, expected in enumerate(answers(name)):
        if task is Task.SEQUENCE_CLASSIFICATION:
            if not mask[row, 0] and config["model_type"] != "qwen3":  # the head reads padding
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
