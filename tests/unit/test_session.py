"""Sessions: what is fed, what comes back, how runs fail and are stopped."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from libsemantic.engine.batching import RunControl, RunStoppedError, Work
from libsemantic.engine.devices import PRODUCT_MODEL
from libsemantic.engine.errors import (
    BadArtifactError,
    InternalError,
    OutOfMemoryError,
    SemanticError,
)
from libsemantic.engine.providers import Device
from libsemantic.engine.session import (
    OrtModel,
    Runner,
    Session,
    first_run,
)
from libsemantic.engine.ticket import Ticket

CPU = Device("cpu", "cpu")
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
PAD = 99


@dataclass(frozen=True, slots=True)
class Window:
    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]


def window(*ids: int) -> Window:
    """Make a window whose last token is of type 1."""
    types = np.zeros(len(ids), np.int64)
    types[-1] = 1
    return Window(np.array(ids, np.int64), types)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, str],
    rank: int = 3,
    constants: Sequence[onnx.TensorProto] = (),
) -> OrtModel:
    """Wrap nodes that compute "y" of a rank from inputs [batch, tokens]."""
    types = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}
    values = [
        helper.make_tensor_value_info(name, types[dtype], ["batch", "tokens"])
        for name, dtype in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    graph = helper.make_graph(list(nodes), "g", values, [output], list(constants))
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(built)
    return OrtModel(built.SerializeToString(), None, inputs, "y")


def echo(dtype: str = "int64") -> OrtModel:
    """Answer each token with what was fed for it, one column for each input."""
    nodes = []
    for name in INPUTS:
        nodes.append(helper.make_node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Unsqueeze", [f"{name}_f", "last"], [f"{name}_u"]))
    nodes.append(helper.make_node("Concat", [f"{name}_u" for name in INPUTS], ["y"], axis=2))
    last = helper.make_tensor("last", TensorProto.INT64, [1], [2])
    return model(nodes, dict.fromkeys(INPUTS, dtype), 3, [last])


def slow() -> OrtModel:
    """Count to 2^62, which no one waits for."""
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, [1])
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["s", "one"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            state,
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Loop", ["count", "", "zero"], ["sum"], body=body),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    constants = [
        helper.make_tensor("count", TensorProto.INT64, [], [2**62]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
    ]
    return model(nodes, {"input_ids": "int64"}, 2, constants)


def session(graph: OrtModel, *, token_types: bool = True) -> Session:
    runner = Runner(graph, CPU, threads=1)
    return Session(runner, pad_id=PAD, token_types=token_types)


def control() -> RunControl:
    return RunControl([Work([window(1)], Ticket())])


# The first run


def test_the_first_run_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[object, object]] = []

    class Watched:
        def __init__(self, data: bytes, *_: object, providers: object) -> None:
            self.real = real(data, providers=providers)

        def run(self, outputs: None, feeds: Mapping[str, NDArray[np.float32]]) -> object:
            runs.append((feeds["x"].tolist(), self.real.run(outputs, feeds)[0].tolist()))
            return runs[-1]

    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    first_run()
    assert runs == [([[1.0]], [[1.0]])]


# What is fed and what comes back


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_windows_are_padded_behind_and_come_back_without(dtype: str) -> None:
    windows = [window(5, 6, 7), window(8), window(9, 10)]
    outputs = session(echo(dtype)).run(windows, control())
    assert [output.tolist() for output in outputs] == [
        [[5, 1, 0, 0], [6, 1, 0, 1], [7, 1, 1, 2]],
        [[8, 1, 1, 0]],
        [[9, 1, 0, 0], [10, 1, 1, 1]],
    ]
    assert all(output.dtype == np.float32 for output in outputs)


def test_padding_is_the_pad_token_of_type_0_and_masked() -> None:
    # Sums over the tokens show what stood in the padding.
    nodes = [
        helper.make_node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT) for name in INPUTS[:3]
    ]
    nodes += [
        helper.make_node("ReduceSum", [f"{name}_f", "tokens"], [f"{name}_s"]) for name in INPUTS[:3]
    ]
    nodes.append(helper.make_node("Concat", [f"{name}_s" for name in INPUTS[:3]], ["y"], axis=1))
    axis = helper.make_tensor("tokens", TensorProto.INT64, [1], [1])
    graph = model(nodes, dict.fromkeys(INPUTS[:3], "int64"), 2, [axis])
    outputs = session(graph).run([window(5, 6, 7), window(8)], control())
    assert [output.tolist() for output in outputs] == [[18, 3, 1], [8 + 2 * PAD, 1, 1]]


def test_token_types_are_left_out_for_models_that_do_not_take_them() -> None:
    for windows in ([window(5, 6)], [window(5, 6), window(7)]):
        outputs = session(echo(), token_types=False).run(windows, control())
        assert [output[:, 2].tolist() for output in outputs] == [[0] * len(o) for o in outputs]
        assert outputs[0][:, 0].tolist() == [5, 6]


def test_outputs_of_another_shape_are_refused() -> None:
    cast = helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT)
    flat = helper.make_node("Flatten", ["x"], ["y"], axis=0)
    one_row = helper.make_node("ReduceSum", ["x", "axis"], ["y"])
    twice = helper.make_node("Concat", ["x", "x"], ["z"], axis=1)
    wide = helper.make_node("Unsqueeze", ["z", "two"], ["y"])
    deep = helper.make_node("Unsqueeze", ["x", "two"], ["z"])
    shape = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    cases: list[tuple[list[onnx.NodeProto], int, str]] = [
        ([cast, flat], 2, r"\[1, 6\] for 2 sequences of 3 tokens"),
        ([cast, one_row], 2, r"\[1, 3\] for 2 sequences"),
        ([cast, twice, wide], 3, r"6 positions for 3 tokens"),
        ([cast, deep, wide], 4, r"\[2, 3, 1, 1\] for 2 sequences"),
    ]
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    for nodes, rank, message in cases:
        graph = model(nodes, {"input_ids": "int64"}, rank, [shape, two])
        with pytest.raises(BadArtifactError, match=message):
            session(graph).run([window(1, 2, 3), window(4, 5)], control())


# Failures


@pytest.mark.parametrize("data", [b"", b"not a model", PRODUCT_MODEL[:-8]])
def test_a_graph_that_is_refused_is_a_bad_artifact(
    data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadArtifactError, match="ONNX Runtime refuses the model: ") as caught:
        session(OrtModel(data, None, {"x": "int64"}, "y"))
    assert "\n" not in caught.value.message
    assert capfd.readouterr() == ("", "")


def test_a_failing_run_says_why_and_the_session_lives_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [10, 2], [float(i) for i in range(20)])
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["y"])]
    opened = session(model(nodes, {"input_ids": "int64"}, 3, [table]))
    for _ in range(3):
        with pytest.raises(
            InternalError, match=r"ONNX Runtime failed in a run: INVALID_ARGUMENT in Gather;"
        ) as caught:
            opened.run([window(11)], control())
        assert "\n" not in caught.value.message
        (output,) = opened.run([window(3, 4)], control())
        assert output.tolist() == [[6, 7], [8, 9]]
    assert capfd.readouterr() == ("", "")


def test_memory_that_is_refused_is_told_apart() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["huge"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0),
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "s"], ["y"]),
    ]
    # The shape depends on the input, or it would be computed at load.
    nodes[:1] = [
        helper.make_node("ReduceMax", ["input_ids"], ["m"], keepdims=0),
        helper.make_node("Unsqueeze", ["m", "zero"], ["huge"]),
        *nodes[:1],
    ]
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    opened = session(model(nodes, {"input_ids": "int64"}, 2, [zero]))
    with pytest.raises(OutOfMemoryError, match="refused the memory"):
        opened.run([window(2**46)], control())
    (output,) = opened.run([window(3)], control())
    assert output.tolist() == [0]


# Stopping


@pytest.mark.parametrize("before", [True, False], ids=["before", "while"])
def test_a_run_is_stopped(before: bool) -> None:
    opened = session(slow())
    stopped = control()

    def stop() -> None:
        stopped.works[0].ticket.cancelled = True
        stopped.expire()

    timer = threading.Timer(0.1, stop)
    if before:
        stop()
    else:
        timer.start()
    started = time.monotonic()
    with pytest.raises(RunStoppedError):
        opened.run([window(1)], stopped)
    assert time.monotonic() - started < 5
    if not before:
        timer.join()
    assert not isinstance(RunStoppedError(), SemanticError)


def test_a_stopped_run_leaves_the_next_one_alone() -> None:
    # Runs share their options, and one that was stopped would stop its successors.
    opened = session(slow())
    for _ in range(2):
        stopped = control()
        stopped.works[0].ticket.cancelled = True
        timer = threading.Timer(0.05, stopped.expire)
        timer.start()
        started = time.monotonic()
        with pytest.raises(RunStoppedError):
            opened.run([window(1)], stopped)
        assert time.monotonic() - started > 0.04
        timer.join()


class Overtaken(RunControl):
    """Is stopped just as its run has ended."""

    __slots__ = ("_given",)

    def __init__(self, works: Sequence[Work]) -> None:
        self._given: list[Callable[[], None]] = []
        super().__init__(works)

    @property
    def stop(self) -> Callable[[], None] | None:
        return None

    @stop.setter
    def stop(self, stop: Callable[[], None] | None) -> None:
        if stop is not None:
            self._given.append(stop)
        elif self._given:  # taken back: the run has ended
            self.stopped = True
            self._given.pop()()


def test_a_run_that_is_stopped_as_it_ends_leaves_the_next_one_alone() -> None:
    opened = session(echo())
    overtaken = Overtaken([Work([window(1)], Ticket())])
    opened.run([window(1)], overtaken)
    assert overtaken.stopped
    (output,) = opened.run([window(4)], control())
    assert output[0, 0] == 4


def test_stopping_after_the_end_does_nothing() -> None:
    opened, ended = session(echo()), control()
    opened.run([window(1)], ended)
    assert ended.stop is None
    ended.works[0].ticket.cancelled = True
    ended.expire()
    (output,) = opened.run([window(4)], control())
    assert output[0, 0] == 4
