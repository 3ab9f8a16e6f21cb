"""Graphs in float16, for GPUs, on the CPU: ONNX Runtime casts where it has no such kernel."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from libsemantic.engine.graphs import Branches
from libsemantic.engine.graphs.builder import DEFAULT_BRANCHES
from libsemantic.engine.graphs.half import as_half

from .graph_runs import GOLDENS, Runner, built, cases_of, golden_difference

# To transformers: of vectors, and of logits as a share of their range. Models are tiny and random.
VECTORS, SHARE = 0.005, 0.02
VARIANTS = {"fused": (True, DEFAULT_BRANCHES), "plain": (False, Branches(whole=None))}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", GOLDENS)
def test_float16_is_close_to_transformers(name: str, variant: str) -> None:
    fused, branches = VARIANTS[variant]
    half = golden_difference(name, Runner(as_half(built(name, fused=fused, branches=branches))))
    if GOLDENS[name].pool:
        assert 1e-5 < half < VECTORS
        return
    logits = np.concatenate([np.ravel(case["logits"]) for case in cases_of(name)])
    spread = float(np.ptp(logits))
    assert 1e-4 < half < SHARE * spread


@pytest.mark.parametrize("name", ["modernbert-seq-mean", "qwen3-embed-last", "gemma3-embed-mean"])
def test_long_and_padded_texts_go_the_same_way(name: str) -> None:
    # In blocks from the first token on: loops and branches end in float16 as well.
    runner = Runner(as_half(built(name, branches=Branches(whole=8))))
    full = Runner(built(name))
    rng = np.random.default_rng(5)
    ids = rng.integers(5, 60, (2, 300))
    mask = np.ones_like(ids)
    mask[1, 120:] = 0  # whole blocks of padding, where nothing is to be seen
    half, exact = runner.run(ids, mask), full.run(ids, mask)
    assert np.isfinite(half).all()
    kept = mask.astype(bool) if half.ndim == 3 else slice(None)
    assert 1e-4 < np.abs(half - exact)[kept].max() < 0.05 * np.ptp(exact)


def test_weights_are_float16_and_positions_are_not() -> None:
    graph = as_half(built("modernbert-seq-cls"))
    model = onnx.load_model_from_string(graph.model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in inferred.value_info}
    of_operator = {
        kind: {kinds[node.output[0]] for node in inferred.node if node.op_type == kind}
        for kind in ("Gemm", "LayerNormalization", "Cos", "Sin")
    }
    assert of_operator["Gemm"] == of_operator["LayerNormalization"] == {TensorProto.FLOAT16}
    assert of_operator["Cos"] == of_operator["Sin"] == {TensorProto.FLOAT}
    assert [out.type.tensor_type.elem_type for out in model.graph.output] == [TensorProto.FLOAT]
