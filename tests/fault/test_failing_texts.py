"""Models that fail in ONNX Runtime on some texts: these fail alone, and nothing quotes them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libsemantic.engine.errors import InternalError, Status
from libsemantic.engine.registry import Registry

from .test_bad_artifacts import (
    GOLDEN,
    CopyGolden,
    folder_for,
    inlined,
    rename_output,
    save,
    token_of,
)

NAME = "bert-seq"


def failing(operator: str) -> onnx.ModelProto:
    """Return a model that fails on texts with "math", in a node that is given their token ids."""
    model = inlined(NAME)
    old = rename_output(model, "clean")
    model.graph.output[0].name = old
    constants = {
        "trigger": np.array(token_of(NAME, "math")),
        "last": np.array([-1]),
        "table": np.zeros(5, np.float32),
        "zero": np.zeros((), np.float32),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Equal", ["input_ids", "trigger"], ["hits"]),
            node("Cast", ["hits"], ["ones"], to=TensorProto.INT64),
            node("Mul", ["ones", "input_ids"], ["index"]),  # 0 but for the trigger
            node("Unsqueeze", ["index", "last"], ["deep index"]),
            node("Reshape", ["index", "last"], ["flat index"]),
            node("Cast", ["index"], ["updates"], to=TensorProto.FLOAT),
            node("Cast", ["flat index"], ["flat updates"], to=TensorProto.FLOAT),
            {
                "Gather": node("Gather", ["table", "index"], ["found"]),
                "GatherND": node("GatherND", ["table", "deep index"], ["found"]),
                "GatherElements": node("GatherElements", ["table", "flat index"], ["found"]),
                "ScatterND": node("ScatterND", ["table", "deep index", "updates"], ["found"]),
                "ScatterElements": node(
                    "ScatterElements", ["table", "flat index", "flat updates"], ["found"]
                ),
            }[operator],
            node("ReduceMax", ["found"], ["most"], keepdims=0),
            node("Mul", ["most", "zero"], ["nothing"]),
            node("Add", ["clean", "nothing"], [old]),
        ]
    )
    return model


@pytest.mark.parametrize(
    "operator", ["Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements"]
)
def test_a_text_that_fails_a_run_fails_alone_and_is_not_quoted(
    registry: Registry, copy_golden: CopyGolden, operator: str
) -> None:
    folder = folder_for(copy_golden, NAME, {})
    save(failing(operator), folder / "model.onnx")
    handle = registry.load(str(folder))
    sound = registry.load(str(GOLDEN / NAME))
    answer = registry.classify(handle, ["law code", "math code", "code law"])
    assert answer.rows.status == (Status.OK, Status.INTERNAL, Status.OK)
    expected = registry.classify(sound, ["law code", "code law"]).logits
    np.testing.assert_allclose(answer.logits[[0, 2]], expected, rtol=0, atol=1e-5)
    assert np.isnan(answer.logits[1]).all()
    with pytest.raises(InternalError) as caught:
        registry.classify(handle, ["math code"])
    for message in (answer.rows.message[1], caught.value.message):
        assert f" in {operator};" in message
        assert not any(letter.isdigit() for letter in message)
