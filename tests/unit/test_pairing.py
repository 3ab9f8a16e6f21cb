"""Which of a model's two sessions runs a text, and when there are two."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from libsemantic.engine.batching import RunControl
from libsemantic.engine.pairing import RunnerPair, open_runner
from libsemantic.engine.providers import Device
from libsemantic.engine.session import OrtModel, Runner, as_values

CPU = Device("cpu", "cpu")
FEEDS = {"input_ids": np.array([[1, 2]], np.int64)}


def graph(factor: float) -> OrtModel:
    """Multiply the ids."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens"])
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    built = helper.make_graph(nodes, "g", [ids], [output], [constant])
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return OrtModel(model.SerializeToString(), None, {"input_ids": "int64"}, "y")


def control(*, alone: bool) -> RunControl:
    made = RunControl(())
    made.alone = alone
    return made


def test_a_run_that_is_alone_takes_the_wide_session() -> None:
    wide, narrow = (Runner(graph(factor), CPU, threads=1) for factor in (10.0, 3.0))
    pair = RunnerPair(wide, narrow)
    assert (pair.provider, pair.inputs) == (wide.provider, wide.inputs)
    for alone, wanted in ((True, [[10, 20]]), (False, [[3, 6]])):
        assert pair.run(FEEDS, control(alone=alone)).tolist() == wanted
        values = pair.run_values(as_values(FEEDS), control(alone=alone))
        assert values.numpy().tolist() == wanted


@pytest.mark.parametrize(
    ("threads", "runs", "mebibytes", "kind"),
    [(1, 4, 192, Runner), (2, 1, 192, Runner), (2, 2, 192, RunnerPair), (2, 2, 193, Runner)],
)
def test_there_are_two_only_where_runs_of_several_threads_may_meet_and_weights_are_small(
    threads: int, runs: int, mebibytes: int, kind: type
) -> None:
    found = open_runner(
        graph(2.0),
        CPU,
        threads=threads,
        runs=runs,
        weight_bytes=mebibytes << 20,
        control=RunControl(()),
    )
    assert type(found) is kind
    assert found.run(FEEDS, control(alone=False)).tolist() == [[2, 4]]
