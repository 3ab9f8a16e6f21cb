"""Facts read from ONNX files that are made here, tiny and sometimes damaged."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from libsemantic.engine import onnx_file
from libsemantic.engine.config import Task
from libsemantic.engine.errors import (
    BadArtifactError,
    NotFoundError,
    SemanticError,
    UnsupportedError,
)
from libsemantic.engine.onnx_file import OnnxFile, OnnxInput, OnnxOutput, inspect_onnx
from libsemantic.engine.onnx_outputs import named_task, select_output

SEQUENCE, TOKEN = Task.SEQUENCE_CLASSIFICATION, Task.TOKEN_CLASSIFICATION
BATCH_TOKENS = ["batch", "tokens"]
IDS = helper.make_tensor_value_info("input_ids", TensorProto.INT64, BATCH_TOKENS)
LOGITS = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])
MEMORY = "*/_ORT_MEM_ADDR_/*"


def array(dtype: type[np.generic], *shape: int) -> NDArray[np.generic]:
    return np.zeros(shape, dtype)


def save(
    path: Path,
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (IDS,),
    outputs: Sequence[onnx.ValueInfoProto] = (LOGITS,),
    nodes: Sequence[onnx.NodeProto] = (),
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, functions=functions)
    path.write_bytes(model.SerializeToString())
    return path


def external(name: str, location: str, **entries: str) -> onnx.TensorProto:
    """Make a float tensor of four values whose data lies in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def value(name: str, dtype: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def file_with(*outputs: OnnxOutput) -> OnnxFile:
    inputs = (OnnxInput("input_ids", "int64", ("batch", "tokens")),)
    return OnnxFile(Path("m.onnx"), 1, inputs, outputs, (), {}, "fp32")


# Inputs and outputs


def test_inputs_and_outputs_are_reported_as_declared(tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        inputs=[
            IDS,
            value("attention_mask", TensorProto.INT32, [None, 128]),
            value("token_type_ids", TensorProto.INT64, None),
            value("position_ids", TensorProto.INT64, [-1, "tokens"]),
        ],
        outputs=[
            LOGITS,
            value("states", TensorProto.FLOAT16, ["batch", "tokens", "hidden"]),
            value("unknown", TensorProto.BFLOAT16, None),
            value("scalar", TensorProto.INT64, []),
            helper.make_value_info(
                "many", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
            ),
        ],
    )
    file = inspect_onnx(path)
    assert (file.path, file.size) == (path, path.stat().st_size)
    assert file.inputs == (
        OnnxInput("input_ids", "int64", ("batch", "tokens")),
        OnnxInput("attention_mask", "int32", (None, 128)),
        OnnxInput("token_type_ids", "int64", None),
        OnnxInput("position_ids", "int64", (None, "tokens")),
    )
    assert file.outputs == (
        OnnxOutput("logits", "float", 2, 3),
        OnnxOutput("states", "float16", 3, None),
        OnnxOutput("unknown", "bfloat16", None, None),
        OnnxOutput("scalar", "int64", 0, None),
        OnnxOutput("many", "", None, None),
    )


def test_initialisers_that_old_files_list_as_inputs_are_none(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(array(np.float32, 2), "weight")
    listed = value("weight", TensorProto.FLOAT, [2])
    file = inspect_onnx(save(tmp_path / "m.onnx", inputs=[IDS, listed], weights=[weight]))
    assert [each.name for each in file.inputs] == ["input_ids"]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([value("bytes", TensorProto.INT32, ["b", 2048])], "wants the input 'bytes'"),
        ([IDS, value("pixel_values", 1, None)], "wants the input 'pixel_values'"),
        ([value("attention_mask", TensorProto.INT64, None)], "has no input 'input_ids'"),
        ([], "has no input 'input_ids'"),
        ([value("input_ids", TensorProto.FLOAT, BATCH_TOKENS)], "'input_ids' is float"),
        ([IDS, value("attention_mask", TensorProto.BOOL, None)], "'attention_mask' is bool"),
        ([value("input_ids", TensorProto.INT64, ["tokens"])], "of shape ('tokens',)"),
        ([IDS, value("attention_mask", TensorProto.INT64, [1, 1, 1, 1])], "of shape (1, 1, 1, 1)"),
    ],
)
def test_inputs_that_a_text_model_does_not_have_are_not_supported(
    tmp_path: Path, inputs: list[onnx.ValueInfoProto], reason: str
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        inspect_onnx(save(tmp_path / "m.onnx", inputs=inputs))
    assert reason in raised.value.message
    assert "m.onnx" in raised.value.message


# Operators


def test_custom_operators_are_named_also_inside_branches(tmp_path: Path) -> None:
    custom = helper.make_node("BertTokenizer", ["a"], ["b"], domain="ai.onnx.contrib")
    branch = helper.make_graph([custom], "branch", [], [LOGITS])
    nested = helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch)
    for nodes in ([custom], [nested]):
        with pytest.raises(
            UnsupportedError, match=r"operator 'ai.onnx.contrib::BertTokenizer'; exp"
        ):
            inspect_onnx(save(tmp_path / "m.onnx", nodes=nodes))


@pytest.mark.parametrize(
    "domain",
    ["", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"],
)
def test_operators_of_the_runtime_are_accepted(tmp_path: Path, domain: str) -> None:
    node = helper.make_node("Any", ["a"], ["b"], domain=domain)
    assert inspect_onnx(save(tmp_path / "m.onnx", nodes=[node])).outputs


def test_functions_of_the_file_itself_are_no_custom_operators(tmp_path: Path) -> None:
    def function(inner: onnx.NodeProto) -> onnx.FunctionProto:
        imports = [helper.make_opsetid("", 18)]
        return helper.make_function("pkg", "gelu", ["x"], ["y"], [inner], imports)

    call = helper.make_node("gelu", ["a"], ["b"], domain="pkg")
    plain = function(helper.make_node("Relu", ["x"], ["y"]))
    assert inspect_onnx(save(tmp_path / "m.onnx", nodes=[call], functions=[plain])).outputs
    custom = function(helper.make_node("Secret", ["x"], ["y"], domain="lab"))
    with pytest.raises(UnsupportedError, match="lab::Secret"):
        inspect_onnx(save(tmp_path / "m.onnx", nodes=[call], functions=[custom]))


# Precision


def matmul(name: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", name], [f"{name}_out"])


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        (np.float32, "fp32"),
        (np.float16, "fp16"),
        (np.float64, "fp64"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.int8, "int8"),
        (np.uint8, "int8"),
        (ml_dtypes.int4, "int4"),
        (ml_dtypes.uint4, "int4"),
    ],
)
def test_the_precision_is_that_of_the_weights(
    tmp_path: Path, dtype: type[np.generic], precision: str
) -> None:
    weights = [
        numpy_helper.from_array(array(dtype, 33, 33), "w"),
        numpy_helper.from_array(array(np.float32, 3), "bias"),
        numpy_helper.from_array(array(np.int64, 5000), "indices"),
    ]
    file = inspect_onnx(save(tmp_path / "m.onnx", nodes=[matmul("w")], weights=weights))
    bits = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "int4": 4}[precision]
    expected = {precision: (33 * 33 * bits + 7) // 8}
    expected["fp32"] = expected.get("fp32", 0) + 12
    assert file.dtype == precision
    assert dict(file.weight_bytes) == expected


def test_tables_that_are_only_looked_up_in_do_not_decide_the_precision(tmp_path: Path) -> None:
    weights = [
        numpy_helper.from_array(array(np.float32, 1000, 8), "table"),
        numpy_helper.from_array(array(np.int8, 8, 8), "w"),
    ]
    lookup = helper.make_node("Gather", ["table", "input_ids"], ["x"])
    path = tmp_path / "m.onnx"
    file = inspect_onnx(save(path, nodes=[lookup, matmul("w")], weights=weights))
    assert file.dtype == "int8"
    assert dict(file.weight_bytes) == {"fp32": 32_000, "int8": 64}
    # A table that is also the weight of the head does.
    nodes = [lookup, matmul("w"), matmul("table")]
    assert inspect_onnx(save(path, nodes=nodes, weights=weights)).dtype == "fp32"
    assert inspect_onnx(save(path, nodes=[lookup], weights=weights[:1])).dtype == "fp32"


@pytest.mark.parametrize(
    ("operator", "attributes", "precision"),
    [
        ("MatMulNBits", {"bits": 4}, "int4"),
        ("MatMulNBits", {"bits": 8}, "int8"),
        ("MatMulBnb4", {"quant_type": 1}, "int4"),
        ("MatMul", {}, "int8"),
    ],
)
def test_packed_weights_count_as_what_they_hold(
    tmp_path: Path, operator: str, attributes: dict[str, int], precision: str
) -> None:
    weights = [
        numpy_helper.from_array(array(np.uint8, 16, 2, 16), "packed"),
        numpy_helper.from_array(array(np.float32, 32), "scales"),
    ]
    node = helper.make_node(operator, ["x", "packed", "scales"], ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    file = inspect_onnx(save(tmp_path / "m.onnx", nodes=[node], weights=weights))
    assert file.dtype == precision
    assert dict(file.weight_bytes) == {precision: 512, "fp32": 128}


def test_weights_in_constants_and_branches_count(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(array(np.float16, 8, 8), "w")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    branch = helper.make_graph([matmul("w")], "branch", [], [LOGITS], [tensor])
    nested = helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch)
    file = inspect_onnx(save(tmp_path / "m.onnx", nodes=[constant, nested]))
    assert (file.dtype, dict(file.weight_bytes)) == ("fp16", {"fp16": 3 * 128})


def test_a_file_without_weights_has_no_precision(tmp_path: Path) -> None:
    assert inspect_onnx(save(tmp_path / "m.onnx")).dtype == ""


# Damage


def test_a_file_cut_at_any_place_is_never_taken_for_whole(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(array(np.float32, 8), "w")
    whole = save(tmp_path / "m.onnx", nodes=[matmul("w")], weights=[weight]).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "m.onnx").write_bytes(whole[:length])
        with pytest.raises((BadArtifactError, UnsupportedError), match=r"m.onnx"):
            inspect_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "data", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x80" * 50, b"<html>"]
)
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(BadArtifactError, match=r"m.onnx .*fetch it again"):
        inspect_onnx(tmp_path / "m.onnx")


def test_a_tensor_with_too_few_bytes_is_refused(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(15))
    with pytest.raises(BadArtifactError, match="'w' holds 15 bytes, its shape needs 16"):
        inspect_onnx(save(tmp_path / "m.onnx", weights=[weight]))


def test_a_missing_or_unreadable_file_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(NotFoundError, match=r"m.onnx is missing"):
        inspect_onnx(path)
    save(path)

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(NotFoundError, match=r"m.onnx cannot be read: Permission denied"):
        inspect_onnx(path)


def test_want_of_memory_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(_: bytes) -> None:
        raise MemoryError

    path = save(tmp_path / "m.onnx")
    monkeypatch.setattr(onnx, "load_model_from_string", exhaust)
    with pytest.raises(MemoryError):
        inspect_onnx(path)


def test_a_file_above_the_limit_of_protobuf_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(BadArtifactError, match=r"2147483648 bytes.*external data"):
        inspect_onnx(path)


# External data


def test_external_data_is_listed_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(bytes(40))
    (tmp_path / "b").write_bytes(bytes(16))
    tensors = [
        external("w1", "data/a"),
        external("w2", "data/a", offset="24", length="16"),
        external("w3", "b", length="16"),
    ]
    file = inspect_onnx(save(tmp_path / "m.onnx", weights=tensors))
    assert file.external == (("b", 16), ("data/a", 40))
    assert dict(file.weight_bytes) == {"fp32": 48}


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"m.onnx needs 'model.onnx_data' beside it"):
        inspect_onnx(save(tmp_path / "m.onnx", weights=[external("w", "model.onnx_data")]))


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../data", "a/../../data", "", "da\0ta", MEMORY]
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "data").write_bytes(bytes(16))
    # A folder of this name must not make an address of a location.
    place = folder / "*" / "_ORT_MEM_ADDR_"
    place.mkdir(parents=True)
    (place / "*").write_bytes(bytes(16))
    with pytest.raises(BadArtifactError, match="for weights; only files in its own folder"):
        inspect_onnx(save(folder / "m.onnx", weights=[external("w", location)]))


@pytest.mark.parametrize("link", ["data", "sub"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, link: str) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "data").write_bytes(bytes(16))
    (folder / link).symlink_to(outside / "data" if link == "data" else outside)
    location = "data" if link == "data" else "sub/data"
    with pytest.raises(BadArtifactError, match=r"outside the folder; copy the file there"):
        inspect_onnx(save(folder / "m.onnx", weights=[external("w", location)]))


def test_links_inside_the_folder_and_into_a_cache_of_blobs_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "weights").write_bytes(bytes(16))
    save(blobs / "graph", weights=[external("w", "model.onnx_data")])
    (snapshot / "model.onnx").symlink_to("../../blobs/graph")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/weights")
    assert inspect_onnx(snapshot / "model.onnx").external == (("model.onnx_data", 16),)

    folder = tmp_path / "plain"
    folder.mkdir()
    shutil.copy(blobs / "graph", folder / "m.onnx")
    (folder / "real").write_bytes(bytes(16))
    (folder / "model.onnx_data").symlink_to("real")
    assert inspect_onnx(folder / "m.onnx").external == (("model.onnx_data", 16),)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "25"},
        {"offset": "24", "length": "20"},
        {"length": "12"},
        {"offset": "-4"},
        {"offset": "x"},
        {"offset": "9" * 30},
        {"length": ""},
        {"length": "²"},
    ],
)
def test_external_data_must_lie_within_its_file(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "data").write_bytes(bytes(40))
    with pytest.raises(BadArtifactError, match=r"'w' needs 16 bytes.*the file has 40"):
        inspect_onnx(save(tmp_path / "m.onnx", weights=[external("w", "data", **entries)]))


def test_external_data_of_a_constant_in_a_branch_is_checked_too(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=external("w", "gone"))
    branch = helper.make_graph([constant], "branch", [], [LOGITS])
    nested = helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch)
    with pytest.raises(NotFoundError, match="needs 'gone'"):
        inspect_onnx(save(tmp_path / "m.onnx", nodes=[nested]))


# The output that answers

POOLED = OnnxOutput("sentence_embedding", "float", 2, 384)
STATES = OnnxOutput("last_hidden_state", "float", 3, 384)
TOKENS = OnnxOutput("token_embeddings", "float", 3, 384)
POOLER = OnnxOutput("pooler_output", "float", 2, 384)
CLASSES = OnnxOutput("logits", "float", 2, 3)
TAGS = OnnxOutput("logits", "float16", 3, 3)
OPEN = OnnxOutput("x", "float", 2, None)
UNKNOWN = OnnxOutput("logits", "float", None, None)
NAMELESS = OnnxOutput("y", "float", None, None)
# As paraphrase-MiniLM-L3-v2 is exported: the inputs first, then states, then the pooled vector.
ODD = (
    OnnxOutput("output", "int64", 2, None),
    OnnxOutput("463", "int64", 2, None),
    OnnxOutput("onnx::Shape_422", "float", 3, 384),
    OnnxOutput("461", "float", 2, None),
)


@pytest.mark.parametrize(
    ("task", "width", "outputs", "chosen"),
    [
        (SEQUENCE, 3, (STATES, POOLER, CLASSES), CLASSES),
        (SEQUENCE, 9, (CLASSES,), CLASSES),  # its name decides; the caller compares the width
        (SEQUENCE, 3, (POOLER, OnnxOutput("x", "float", 2, 3)), OnnxOutput("x", "float", 2, 3)),
        (SEQUENCE, 3, (POOLER, OPEN), OPEN),
        (TOKEN, 3, (STATES, TAGS), TAGS),
        (TOKEN, 3, (STATES, OnnxOutput("x", "double", 3, 3)), OnnxOutput("x", "double", 3, 3)),
        (Task.EMBEDDING, 384, (TOKENS, STATES, POOLED, POOLER), POOLED),
        (Task.EMBEDDING, 384, (TOKENS, STATES, POOLER), STATES),
        (Task.EMBEDDING, 384, (POOLER, TOKENS), TOKENS),
        (Task.EMBEDDING, 384, ODD, ODD[2]),
        (Task.EMBEDDING, 0, ODD, ODD[2]),
        (SEQUENCE, 3, (UNKNOWN, POOLER), UNKNOWN),
        (TOKEN, 3, (POOLER, UNKNOWN), UNKNOWN),
        (Task.EMBEDDING, 8, (NAMELESS, POOLER), NAMELESS),
    ],
)
def test_the_output_is_chosen_by_name_then_by_shape(
    task: Task, width: int, outputs: tuple[OnnxOutput, ...], chosen: OnnxOutput
) -> None:
    assert select_output(file_with(*outputs), task, width) == chosen


def test_token_states_can_be_preferred_to_a_pooled_vector() -> None:
    assert select_output(file_with(POOLED, TOKENS, STATES), Task.EMBEDDING, 384) == POOLED
    file = file_with(POOLED, TOKENS, STATES)
    assert select_output(file, Task.EMBEDDING, 384, prefer_tokens=True) == STATES
    file = file_with(POOLED, POOLER)
    assert select_output(file, Task.EMBEDDING, 384, prefer_tokens=True) == POOLED


@pytest.mark.parametrize(
    ("task", "width", "outputs"),
    [
        (SEQUENCE, 3, (STATES, POOLER)),
        (SEQUENCE, 3, (TAGS,)),
        (SEQUENCE, 3, (OnnxOutput("a", "float", 2, 3), OnnxOutput("b", "float", 2, 3))),
        (SEQUENCE, 3, (OnnxOutput("a", "int64", 2, 3),)),
        (SEQUENCE, 3, (OnnxOutput("input_ids", "float", 2, 3),)),
        (TOKEN, 3, (CLASSES,)),
        (TOKEN, 3, ODD),
        (Task.EMBEDDING, 384, (POOLER,)),
        (Task.EMBEDDING, 384, (OnnxOutput("x", "float", 3, 99),)),
        (Task.EMBEDDING, 384, (OnnxOutput("last_hidden_state", "int32", 3, 384),)),
        (Task.EMBEDDING, 0, (OnnxOutput("a", "float", 3, 1), OnnxOutput("b", "float", 3, 2))),
        (Task.EMBEDDING, 8, ()),
    ],
)
def test_an_ambiguous_or_absent_answer_lists_the_outputs(
    task: Task, width: int, outputs: tuple[OnnxOutput, ...]
) -> None:
    with pytest.raises(BadArtifactError) as raised:
        select_output(file_with(*outputs), task, width)
    assert f"no single output is the one for {task.name.lower()}" in raised.value.message
    assert all(repr(output.name) in raised.value.message for output in outputs)


@pytest.mark.parametrize(
    ("outputs", "task"),
    [
        ((CLASSES,), SEQUENCE),
        ((TAGS,), TOKEN),
        ((STATES, POOLER), Task.EMBEDDING),
        ((POOLED, TOKENS), Task.EMBEDDING),
        ((CLASSES, STATES), Task.AUTO),
        ((UNKNOWN,), Task.AUTO),
        (ODD, Task.AUTO),
    ],
)
def test_names_of_outputs_speak_for_a_task(outputs: tuple[OnnxOutput, ...], task: Task) -> None:
    assert named_task(file_with(*outputs)) is task


def test_inspecting_needs_the_onnx_package_only_when_it_runs() -> None:
    assert "onnx" not in vars(onnx_file)


def test_damage_never_escapes_as_another_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    (tmp_path / "data").write_bytes(bytes(16))
    path = save(
        tmp_path / "m.onnx",
        nodes=[helper.make_node("Gather", ["w", "v"], ["x"], domain="", axis=1)],
        weights=[external("w", "data"), numpy_helper.from_array(array(np.int8, 3), "v")],
    )
    whole = path.read_bytes()
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            inspect_onnx(path)
        except SemanticError:
            refused += 1
    assert refused > 1000


def test_names_that_are_not_utf_8_are_damage(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", nodes=[matmul("w")])
    path.write_bytes(path.read_bytes().replace(b"MatMul", b"MatM\xfel"))
    with pytest.raises(BadArtifactError, match="names that are not UTF-8"):
        inspect_onnx(path)
