"""Model folders made to crash, hang or mislead: each is refused, and the others go on answering."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from libsemantic.engine.config import LoadOptions, Precision, RunOptions, RuntimeOptions, Task
from libsemantic.engine.errors import (
    BadArtifactError,
    CancelledError,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    SemanticError,
    Status,
    UnsupportedError,
)
from libsemantic.engine.model import Shelves, load_model
from libsemantic.engine.registry import Registry
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.watchdog import Watchdog

from ..abi.binding import Library

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
WEIGHTS = "model.safetensors"
NEIGHBOUR = "bert-token"
TEXTS = ["jane.roe@example.org called", "a taxi"]
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]
Spoil: TypeAlias = Callable[[Path], object]
Array: TypeAlias = NDArray[np.generic]
Case: TypeAlias = tuple[Spoil, type[SemanticError], str]


class Others:
    """A model that is loaded before, and must go on answering the same."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._handle = registry.load(str(GOLDEN / NEIGHBOUR))
        self._expected = self._answer()

    def _answer(self) -> tuple[list[int], list[float]]:
        found = self._registry.classify_tokens(self._handle, TEXTS)
        return found.start.tolist(), found.score.tolist()

    def go_on(self) -> None:
        assert self._answer() == self._expected


@pytest.fixture
def others(registry: Registry) -> Others:
    return Others(registry)


def refused(
    registry: Registry,
    others: Others,
    folder: Path | str,
    error: type[SemanticError],
    message: str,
    options: LoadOptions | None = None,
) -> None:
    """Require that a load fails so, in little time, and leaves nothing behind."""
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are wanted, not paths)
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        registry.load(str(folder), options)
    assert time.monotonic() - started < 5
    assert type(caught.value) is error
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1000 + len(str(folder))
    assert registry.list_models().name == (NEIGHBOUR,)
    others.go_on()
    del caught
    assert len(os.listdir("/proc/self/fd")) <= opened  # noqa: PTH208


# Ways to spoil a folder


def write(name: str, content: str | bytes) -> Spoil:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def config(**changes: object) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def sparse(name: str, size: int, start: bytes = b"") -> Spoil:
    def spoil(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.write(start)
            file.truncate(size)

    return spoil


def cut(name: str) -> Spoil:
    """Cut off the last byte, and the blanks before the end of a text, which would not matter."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        text = data.rstrip() if name.endswith(".json") else data
        (folder / name).write_bytes(text[:-1])

    return spoil


def linked(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return spoil


def fifo(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def header(change: Callable[[dict[str, dict[str, object]]], object]) -> Spoil:
    """Change the header of the weights, and keep its length true."""

    def spoil(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(data[8:end])
        change(table)
        text = json.dumps(table).encode()
        (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[end:])

    return spoil


def entry(name: str, **changes: object) -> Spoil:
    return header(lambda table: table[name].update(changes))


def filling(length: int) -> Spoil:
    """Make the header valid JSON of so many bytes and some more, and the file as long."""
    text = b'{"__metadata__": {"x": "' + b"x" * length + b'"}}'
    return write(WEIGHTS, len(text).to_bytes(8, "little") + text)


def announced(length: int) -> Spoil:
    """Let the weights say that their header is that long."""

    def spoil(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + data[8:])

    return spoil


BIAS, POOLER = "classifier.bias", "bert.pooler.dense.bias"
DEEP = "[" * 100_000
CASES: dict[str, Case] = {
    "weights cut": (cut(WEIGHTS), BadArtifactError, "is cut short"),
    "config cut": (cut("config.json"), BadArtifactError, "config.json is damaged JSON"),
    "tokenizer cut": (cut("tokenizer.json"), BadArtifactError, "tokenizer.json is damaged"),
    "tokenizer config cut": (
        cut("tokenizer_config.json"),
        BadArtifactError,
        "tokenizer_config.json is damaged JSON",
    ),
    "a header beyond the file": (announced(2**63), BadArtifactError, "announces a header of"),
    "a header one byte longer": (announced(10**6), BadArtifactError, "announces a header of"),
    "a header of 17 MB": (
        filling(17 << 20),
        BadArtifactError,
        "has a header of 17825[0-9]{3} bytes, at most 16777216 are read",
    ),
    "a header of 100 MB": (
        filling(100_000_000),
        BadArtifactError,
        "has a header of 1000000[0-9]{2} bytes, at most 16777216 are read",
    ),
    "a config of 9 MB": (
        write("config.json", '{"x": [' + "0," * (9 << 19) + "0]}"),
        BadArtifactError,
        "has 94371[0-9]{2} bytes; a description has at most 8388608",
    ),
    "a header of nothing": (announced(0), BadArtifactError, "its JSON is damaged"),
    "a header of 16 MB": (
        sparse(WEIGHTS, 200_000_000, (16 << 20).to_bytes(8, "little")),
        BadArtifactError,
        "its JSON is damaged",
    ),
    "a header above the limit": (
        sparse(WEIGHTS, 200_000_000, ((16 << 20) + 1).to_bytes(8, "little")),
        BadArtifactError,
        "has a header of 16777217 bytes, at most 16777216 are read",
    ),
    "a deep header": (
        write(WEIGHTS, len(DEEP).to_bytes(8, "little") + DEEP.encode()),
        BadArtifactError,
        "its JSON is damaged",
    ),
    "a weight of another size": (entry(BIAS, shape=[8]), BadArtifactError, r"takes 28 bytes"),
    "a weight of another type": (entry(BIAS, dtype="F64"), BadArtifactError, r"takes 28 bytes"),
    "a weight of no type": (entry(BIAS, dtype="F99"), BadArtifactError, "unknown dtype 'F99'"),
    "a shape beyond all sense": (
        entry(BIAS, shape=[2**62, 2**62, 2**62]),
        BadArtifactError,
        "no valid shape",
    ),
    "nothing in a shape beyond all sense": (
        entry(BIAS, shape=[0, 2**62]),
        BadArtifactError,
        "no valid shape",
    ),
    "a negative shape": (entry(BIAS, shape=[-7]), BadArtifactError, "no valid shape"),
    "a broken number": (entry(BIAS, shape=[7.0]), BadArtifactError, "no valid shape"),
    "offsets turned round": (
        entry(BIAS, data_offsets=[28, 0]),
        BadArtifactError,
        "no valid data_offsets",
    ),
    "offsets far away": (
        entry(BIAS, data_offsets=[2**62, 2**62 + 28]),
        BadArtifactError,
        "leaves a hole|overlaps|is cut short",
    ),
    "an overlap": (
        header(lambda table: table[POOLER].update(table["bert.embeddings.LayerNorm.bias"])),
        BadArtifactError,
        "overlaps the one before it",
    ),
    "a weight that is missing": (
        header(lambda table: table.pop(BIAS)),
        BadArtifactError,
        "leaves a hole|bytes after its last weight|overlaps",
    ),
    "a weight written twice": (
        write(WEIGHTS, (18).to_bytes(8, "little") + b'{"a": {}, "a": {}}'),
        BadArtifactError,
        "key 'a' occurs twice",
    ),
    "a deep config": (write("config.json", DEEP), BadArtifactError, "is damaged JSON"),
    "a deep object": (
        write("config.json", '{"a":' * 100_000),
        BadArtifactError,
        "is damaged JSON",
    ),
    "a deep tokenizer": (write("tokenizer.json", DEEP), BadArtifactError, "is damaged"),
    "a deep normalizer": (
        write("tokenizer.json", '{"normalizer": ' + DEEP),
        BadArtifactError,
        "is damaged",
    ),
    "a huge config": (sparse("config.json", 2**36), BadArtifactError, "a description has at most"),
    "a huge tokenizer": (
        sparse("tokenizer.json", 2**36),
        BadArtifactError,
        "has 68719476736 bytes, a tokenizer at most 268435456",
    ),
    "a number without end": (
        write("config.json", '{"hidden_size": ' + "9" * 10_000 + "}"),
        BadArtifactError,
        "is damaged JSON",
    ),
    "a hidden size of 10^12": (
        config(hidden_size=10**12),
        BadArtifactError,
        "'hidden_size' is 1000000000000",
    ),
    "10^9 layers": (
        config(num_hidden_layers=10**9),
        BadArtifactError,
        "'num_hidden_layers' is 1000000000, the weights hold 3",
    ),
    "no layers": (config(num_hidden_layers=0), BadArtifactError, "num_hidden_layers"),
    "a negative size": (config(hidden_size=-64), BadArtifactError, "'hidden_size' is -64"),
    "a size that is none": (config(hidden_size=float("nan")), BadArtifactError, "'hidden_size'"),
    "a step that is none": (
        config(layer_norm_eps=float("nan")),
        BadArtifactError,
        "'layer_norm_eps' is nan",
    ),
    "no heads": (config(num_attention_heads=0), BadArtifactError, "num_attention_heads"),
    "heads that do not divide": (config(num_attention_heads=7), BadArtifactError, "heads"),
    "10^30 positions": (
        config(max_position_embeddings=10**30),
        BadArtifactError,
        "'max_position_embeddings' is 1000",
    ),
    "a padding beyond all ids": (
        config(pad_token_id=2**70),
        BadArtifactError,
        "'pad_token_id' is 11805916207174113034…; it must be at least 0 and at most 2147483647",
    ),
    "10^6 labels": (
        config(id2label={"0": "a", "1000000": "b"}, label2id=None),
        BadArtifactError,
        "none for index 1",
    ),
    "a key with two values": (
        write("config.json", '{"model_type": "bert", "model_type": "other"}'),
        BadArtifactError,
        "key 'model_type' stands twice with different values",
    ),
    "a config that is a device": (
        linked("config.json", "/dev/zero"),
        BadArtifactError,
        "config.json is not a regular file",
    ),
    "weights that are a device": (
        linked(WEIGHTS, "/dev/zero"),
        BadArtifactError,
        "is not a regular file",
    ),
    "a tokenizer that is a device": (
        linked("tokenizer.json", "/dev/zero"),
        BadArtifactError,
        "is not a regular file",
    ),
    "a tokenizer that is a pipe": (
        fifo("tokenizer.json"),
        BadArtifactError,
        "is not a regular file",
    ),
    "weights that are a pipe": (fifo(WEIGHTS), BadArtifactError, "is not a regular file"),
    "a config that leads to itself": (
        linked("config.json", "config.json"),
        NotFoundError,
        "config.json cannot be read: Too many levels",
    ),
    "a config that cannot be read": (  # not even by root
        linked("config.json", "/proc/self/mem"),
        NotFoundError,
        "config.json cannot be read: Input/output error",
    ),
    "a tokenizer that cannot be read": (
        linked("tokenizer.json", "/proc/self/mem"),
        BadArtifactError,
        r"tokenizer.json cannot be read \(Input/output error\)",
    ),
    "weights that hold nothing": (
        linked(WEIGHTS, "/proc/self/mem"),
        BadArtifactError,
        "has 0 bytes",
    ),
}


@pytest.mark.parametrize(("spoil", "error", "message"), CASES.values(), ids=CASES)
def test_a_hostile_folder_is_refused(
    registry: Registry,
    others: Others,
    copy_golden: CopyGolden,
    spoil: Spoil,
    error: type[SemanticError],
    message: str,
) -> None:
    folder = copy_golden("bert-seq", {})
    spoil(folder)
    refused(registry, others, folder, error, message)


def test_a_prompt_that_is_longer_than_texts_is_refused(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    prompts = {"prompts": {"q": "word " * 2001}, "default_prompt_name": "q"}
    folder = copy_golden("bert-embed-mean", {"config_sentence_transformers.json": prompts})
    refused(registry, others, folder, BadArtifactError, "the prompt 'q' has 10005 characters")


def test_paths_that_are_no_folder(registry: Registry, others: Others, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    for path, error, message in (
        (tmp_path / "file", InvalidArgumentError, "is not a folder"),
        (tmp_path / "pipe", InvalidArgumentError, "is not a folder"),
        ("/dev/zero", InvalidArgumentError, "is not a folder"),
        (tmp_path / "loop", InvalidArgumentError, "Too many levels of symbolic links"),
        (tmp_path / "loop" / "deeper", InvalidArgumentError, "Too many levels"),
        (tmp_path / "file" / "deeper", NotFoundError, "cannot be opened"),
        (tmp_path / "empty", NotFoundError, "has no config.json"),
        ("", InvalidArgumentError, "is not a folder"),
        ("a\0b", InvalidArgumentError, "is no path"),
        ("x" * 5000, InvalidArgumentError, "File name too long"),
        ("/proc/self/task", NotFoundError, "has no config.json"),
    ):
        refused(registry, others, path, error, message, LoadOptions(name="it"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    for name in ("config.json", "tokenizer.json", WEIGHTS):
        folder = copy_golden("bert-seq", {})
        (folder / name).chmod(0)
        refused(registry, others, folder, SemanticError, f"{name} cannot be read")


def test_a_path_that_is_not_utf8_through_c(tmp_path: Path) -> None:
    library = Library()
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    for path, message in (
        (os.fsencode(folder), f"path is not UTF-8 at byte {len(os.fsencode(tmp_path)) + 4}"),
        (os.fsencode(tmp_path / "link"), "is no UTF-8 path"),
    ):
        arguments = library.good_arguments("semantic_load_model", 0, "")
        arguments["path"] = library.ffi.new("char[]", path)
        assert library.call("semantic_load_model", arguments) == Status.INVALID_ARGUMENT
        assert message in library.message(arguments["error"])
        assert arguments["model"].id == 0
    assert library.lib.semantic_cleanup(0, library.ffi.NULL) == Status.OK


def test_files_with_names_that_cannot_be_told(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    """They are as good as absent; those that a folder does name must be there by that name."""
    folder = copy_golden("bert-seq", {})
    for name in (b"\xff_mapping.json", b"a\nmapping.json", b"\xff.onnx", b"x\r.onnx"):
        (folder / os.fsdecode(name)).write_text("{}")
    handle = registry.load(str(folder))
    info = registry.info(handle)
    assert info.warnings == ()
    assert all(name.isprintable() for name in info.file_names)
    others.go_on()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("{}_mapping.json", LoadOptions(), "has 3000 files whose names say that they map labels"),
        ("{}.onnx", LoadOptions(), "has several ONNX files and none is model.onnx: .*, …;"),
        ("{}.onnx", LoadOptions(precision=Precision.INT8), "has 3000 ONNX files, at most 64"),
    ],
)
def test_thousands_of_files_that_could_be_read_are_not(
    registry: Registry,
    others: Others,
    copy_golden: CopyGolden,
    name: str,
    options: LoadOptions,
    message: str,
) -> None:
    folder = copy_golden("bert-seq", {})
    for number in range(3000):
        (folder / name.format(number)).touch()
    if options.precision is Precision.AUTO and name.endswith(".onnx"):
        (folder / WEIGHTS).unlink()
    refused(registry, others, folder, BadArtifactError, message, options)


def test_thousands_of_files_beside_a_model_do_not_matter(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    folder = copy_golden("bert-seq", {})
    for number in range(10_000):
        (folder / f"{number}.txt").touch()
    info = registry.info(registry.load(str(folder)))
    assert len(info.file_names) == 4


# ONNX files


CONSTANTS: dict[str, Array] = {
    "axis": np.array([1], np.int64),
    "weight": np.linspace(-1, 1, 7, dtype=np.float32)[None],
    "true": np.array(True),
    "one": np.ones(1, np.float32),
    "minus one": -np.ones(1, np.float32),
    "zero": np.zeros(1, np.float32),
    "table": np.ones((5, 1), np.float32),
}
FLOATS = helper.make_node("Cast", ["input_ids"], ["floats"], to=TensorProto.FLOAT)
MEAN = helper.make_node("ReduceMean", ["floats", "axis"], ["mean"])
LOGITS = helper.make_node("MatMul", ["mean", "weight"], ["logits"])
SOUND = (FLOATS, MEAN, LOGITS)


def tiny(
    nodes: Sequence[onnx.NodeProto] = SOUND,
    constants: Mapping[str, Array] | None = None,
    *,
    shape: Sequence[int | str] | None = ("batch", 7),
    ids: Sequence[int | str] = ("batch", "tokens"),
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return a classifier with 7 labels: the mean of the ids, times a weight."""
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ids)]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
    tensors = [
        numpy_helper.from_array(value, name)
        for name, value in {**CONSTANTS, **(constants or {})}.items()
    ]
    graph = helper.make_graph(list(nodes), "tiny", inputs, outputs, tensors)
    opsets = [
        helper.make_opsetid(domain, version)
        for domain, version in {"": 19, **dict.fromkeys(domains, 1)}.items()
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def put(folder: Path, model: onnx.ModelProto | bytes) -> Path:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / WEIGHTS).unlink(missing_ok=True)
    (folder / "model.onnx").write_bytes(data)
    return folder


def endless() -> list[onnx.NodeProto]:
    """Return nodes that answer only after a loop that never ends."""
    value = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    again = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "d")]
    after = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["x"], ["y"])],
        *("body", [number, again[0], *value], [again[1], *after]),
    )
    return [helper.make_node("Loop", ["", "true", "mean"], ["looped"], body=body)]


def laughing(depth: int) -> tuple[list[onnx.NodeProto], list[onnx.FunctionProto]]:
    """Return functions that unfold to 2^depth nodes, and the call of the last."""
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("here", 1)]
    bodies = [[helper.make_node("Neg", ["x"], ["y"])]]
    for level in range(depth):
        call = f"F{level}"
        bodies.append(
            [
                helper.make_node(call, ["x"], ["z"], domain="here"),
                helper.make_node(call, ["z"], ["y"], domain="here"),
            ]
        )
    functions = [
        helper.make_function("here", f"F{level}", ["x"], ["y"], nodes, opsets)
        for level, nodes in enumerate(bodies)
    ]
    call = helper.make_node(f"F{depth}", ["floats"], ["laughed"], domain="here")
    mean = helper.make_node("ReduceMean", ["laughed", "axis"], ["mean"])
    return [FLOATS, call, mean, LOGITS], functions


def laugh(depth: int) -> onnx.ModelProto:
    nodes, functions = laughing(depth)
    return tiny(nodes, functions=functions, domains=["here"])


def added(*nodes: onnx.NodeProto, to: str) -> list[onnx.NodeProto]:
    """Return the sound graph with a value added to its logits."""
    sound = helper.make_node("MatMul", ["mean", "weight"], ["sound"])
    return [FLOATS, MEAN, *nodes, sound, helper.make_node("Add", ["sound", to], ["logits"])]


def filled(count: int) -> onnx.ModelProto:
    """Return a graph that fills that many numbers for each token."""
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Mul", ["sizes", "count"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["all"]),
        helper.make_node("ReduceMax", ["all"], ["most"], keepdims=0),
    ]
    return tiny(added(*nodes, to="most"), {"count": np.array([count, 1], np.int64)})


NAN = helper.make_node("Sqrt", ["minus one"], ["nan"])
INFINITE = helper.make_node("Div", ["one", "zero"], ["infinite"])
NO_BATCH = helper.make_node("ReduceMean", ["floats"], ["mean"], keepdims=1)
DEEPER = helper.make_node("Unsqueeze", ["flat", "axis"], ["logits"])
FLAT = helper.make_node("MatMul", ["mean", "weight"], ["flat"])
LOOKED_UP = (
    helper.make_node("Gather", ["table", "input_ids"], ["found"]),
    helper.make_node("ReduceMean", ["found", "axis"], ["mean"], keepdims=0),
    LOGITS,
)
FUSED = (
    helper.make_node(
        *("EmbedLayerNormalization", ["input_ids", "", "table"], ["found", "lengths"]),
        domain="com.microsoft",
    ),
    *LOOKED_UP[1:],
)
RENAMED = (
    helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT32),
    helper.make_node("Identity", ["table"], ["same table"]),
    helper.make_node("Gather", ["same table", "ids"], ["found"]),
    *LOOKED_UP[1:],
)
SELF_CALL = helper.make_function(
    *("here", "F", ["x"], ["y"], [helper.make_node("F", ["x"], ["y"], domain="here")]),
    [helper.make_opsetid("here", 1)],
)
CALL = helper.make_node("F", ["floats"], ["laughed"], domain="here")
TWICE = helper.make_node("Neg", ["mean"], ["logits"])
GRAPHS: dict[str, tuple[Callable[[], onnx.ModelProto], type[SemanticError], str]] = {
    "a higher rank": (
        lambda: tiny([FLOATS, MEAN, FLAT, DEEPER]),
        BadArtifactError,
        "fails its self-test .* 1 positions for . tokens|has shape|refuses the model",
    ),
    "a higher rank that is not told": (
        lambda: tiny([FLOATS, MEAN, FLAT, DEEPER], shape=None),
        BadArtifactError,
        "output has 1 positions for 4 tokens",
    ),
    "no rank": (
        lambda: tiny(
            [FLOATS, MEAN, helper.make_node("ReduceMax", ["mean"], ["logits"], keepdims=0)],
            shape=None,
        ),
        BadArtifactError,
        r"output has shape \[\] for 2 sequences",
    ),
    "one answer for all": (
        lambda: tiny([FLOATS, NO_BATCH, LOGITS], shape=None),
        BadArtifactError,
        r"output has shape \[1, 7\] for 2 sequences",
    ),
    "not a number": (
        lambda: tiny(added(NAN, to="nan")),
        BadArtifactError,
        "NaN or infinity",
    ),
    "infinity": (lambda: tiny(added(INFINITE, to="infinite")), BadArtifactError, "NaN or infinity"),
    "too few embeddings": (
        lambda: tiny(LOOKED_UP),
        BadArtifactError,
        "token ids up to 663, the model has 5 embeddings",
    ),
    "too few embeddings, renamed": (
        lambda: tiny(RENAMED),
        BadArtifactError,
        "token ids up to 663, the model has 5 embeddings",
    ),
    "too few embeddings, fused": (
        lambda: tiny(FUSED, domains=["com.microsoft"]),
        BadArtifactError,
        "token ids up to 663, the model has 5 embeddings",
    ),
    "a custom operator": (
        lambda: tiny([*SOUND, helper.make_node("F", [], ["f"], domain="x.y")], domains=["x.y"]),
        UnsupportedError,
        "custom operator 'x.y::F'",
    ),
    "a batch of one": (
        lambda: tiny(ids=(1, "tokens")),
        UnsupportedError,
        r"'input_ids' only of shape \[1, 'tokens'\]; export it with free dimensions",
    ),
    "a fixed length": (
        lambda: tiny(ids=("batch", 128)),
        UnsupportedError,
        r"'input_ids' only of shape \['batch', 128\]",
    ),
    "functions that unfold to 2^39 nodes": (
        lambda: laugh(39),
        UnsupportedError,
        "functions unfold to more than 1000000 nodes",
    ),
    "functions 70 deep": (lambda: laugh(70), UnsupportedError, "more than 64 levels deep"),
    "a function that calls itself": (
        lambda: tiny(
            [FLOATS, CALL, helper.make_node("ReduceMean", ["laughed", "axis"], ["mean"]), LOGITS],
            functions=[SELF_CALL],
            domains=["here"],
        ),
        UnsupportedError,
        "call each other",
    ),
    "a circle": (
        lambda: tiny(
            [
                helper.make_node("Add", ["b", "one"], ["a"]),
                helper.make_node("Add", ["a", "one"], ["b"]),
                *added(to="b"),
            ]
        ),
        BadArtifactError,
        "ONNX Runtime refuses the model: .*not acyclic",
    ),
    "a name given twice": (
        lambda: tiny([*SOUND, TWICE]),
        BadArtifactError,
        "ONNX Runtime refuses the model: .*Duplicate definition",
    ),
    "more memory than there are addresses": (
        lambda: filled(2**46),
        OutOfMemoryError,
        "refused the memory for two short texts",
    ),
    "more memory than can be counted": (
        lambda: filled(2**62),
        BadArtifactError,
        "fails its self-test .* in ConstantOfShape",
    ),
    "an initial value that is too large": (
        lambda: with_dims([2**40]),
        BadArtifactError,
        "its shape needs 4398046511104|exceeds the 2147483648 byte limit",
    ),
    "a negative dimension": (
        lambda: with_dims([-5]),
        BadArtifactError,
        "its shape needs -20",
    ),
}


def with_dims(dims: Sequence[int]) -> onnx.ModelProto:
    model = tiny()
    (table,) = [each for each in model.graph.initializer if each.name == "table"]
    del table.dims[:]
    table.dims.extend(dims)
    return model


@pytest.mark.parametrize(("make", "error", "message"), GRAPHS.values(), ids=GRAPHS)
def test_a_hostile_graph_is_refused(
    registry: Registry,
    others: Others,
    copy_golden: CopyGolden,
    make: Callable[[], onnx.ModelProto],
    error: type[SemanticError],
    message: str,
) -> None:
    folder = put(copy_golden("bert-seq", {"config.json": {"vocab_size": 10**6}}), make())
    refused(registry, others, folder, error, message)


def test_the_tiny_graph_itself_is_sound(registry: Registry, copy_golden: CopyGolden) -> None:
    """Else the tests around it would show nothing."""
    for model in (tiny(), laugh(5)):
        folder = put(copy_golden("bert-seq", {}), model)
        handle = registry.load(str(folder))
        (logits,) = registry.classify(handle, ["math"]).logits
        (token,) = registry.classify(handle, ["math law"]).rows.token_count
        assert token == 4
        assert abs(logits[3]) < 1e-6
        assert abs(logits[6]) > 1
        registry.unload(handle, 0)


@pytest.mark.parametrize("key", ["hidden_size", "max_position_embeddings", "pad_token_id"])
@pytest.mark.parametrize("value", [10**12, 10**30, 2**63, -1, 1.5, "64"])
def test_numbers_of_a_config_that_no_weights_check(
    registry: Registry, others: Others, copy_golden: CopyGolden, key: str, value: object
) -> None:
    folder = put(copy_golden("bert-seq", {"config.json": {key: value}}), tiny())
    refused(registry, others, folder, BadArtifactError, f"'{key}' is ")


@pytest.mark.parametrize("where", ["first run", "constants"])
def test_a_graph_that_never_ends_is_stopped_by_the_deadline_of_its_load(
    registry: Registry, others: Others, copy_golden: CopyGolden, where: str
) -> None:
    loop = endless()
    if where == "constants":
        loop[0].input[2] = "one"
    folder = put(copy_golden("bert-seq", {}), tiny(added(*loop, to="looped")))
    errors: list[BaseException] = []

    def load() -> None:
        try:
            registry.load(str(folder), LoadOptions(name="endless", timeout_ms=700))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    started = time.monotonic()
    thread.start()
    answered = 0
    while thread.is_alive() and time.monotonic() - started < 10:
        others.go_on()
        answered += 1
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - started < 5
    assert answered > 5
    (error,) = errors
    assert isinstance(error, DeadlineError)
    assert "timeout_ms 700 has passed" in error.message
    assert registry.list_models().name == (NEIGHBOUR,)


def test_a_load_without_a_deadline_can_be_cancelled(
    copy_golden: CopyGolden,
) -> None:
    folder = put(copy_golden("bert-seq", {}), tiny(added(*endless(), to="looped")))
    ticket, watchdog = Ticket(), Watchdog()
    timer = threading.Timer(0.5, ticket.cancel)
    timer.start()
    started = time.monotonic()
    with pytest.raises(CancelledError):
        load_model(
            *(str(folder), LoadOptions(), RuntimeOptions()),
            name="endless",
            generation=1,
            shelves=Shelves(),
            watchdog=watchdog,
            ticket=ticket,
        )
    assert 0.3 < time.monotonic() - started < 5
    assert ticket.interrupt is None


def test_a_cleanup_stops_a_load_that_never_ends(copy_golden: CopyGolden) -> None:
    registry = Registry()
    other = registry.load(str(GOLDEN / NEIGHBOUR))
    folder = put(copy_golden("bert-seq", {}), tiny(added(*endless(), to="looped")))
    errors: list[BaseException] = []

    def load(options: LoadOptions) -> None:
        try:
            registry.load(str(folder), options)
        except BaseException as error:
            errors.append(error)

    both = (LoadOptions(name="endless"), LoadOptions(replaces=other))
    threads = [threading.Thread(target=load, args=(each,), daemon=True) for each in both]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert all(thread.is_alive() for thread in threads)
    registry.cleanup(5_000)
    for thread in threads:
        thread.join(5)
    assert [type(error) for error in errors] == [ClosedError, ClosedError]
    assert all("a cleanup began while" in str(error) for error in errors)
    again = registry.load(str(GOLDEN / NEIGHBOUR))
    assert registry.classify_tokens(again, TEXTS).rows.count == len(TEXTS)
    registry.cleanup(5_000)


def test_a_graph_that_never_ends_for_some_texts_is_stopped_by_the_deadline_of_a_call(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    """It passes the self-test: the loop goes on only above five tokens."""
    loop = endless()
    body = loop[0].attribute[0].g
    body.node[0].input[0] = "long"
    loop[0].input[1] = "long"
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["length"], start=1),
        helper.make_node("Greater", ["length", "five"], ["longs"]),
        helper.make_node("Squeeze", ["longs"], ["long"]),
        *loop,
    ]
    model = tiny(added(*nodes, to="looped"), {"five": np.array([5], np.int64)})
    handle = registry.load(str(put(copy_golden("bert-seq", {}), model)))
    assert registry.classify(handle, ["math law"]).rows.status == (Status.OK,)
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        registry.classify(handle, ["math " * 10], RunOptions(timeout_ms=300))
    assert time.monotonic() - started < 3
    assert registry.classify(handle, ["math law"]).rows.status == (Status.OK,)
    registry.unload(handle, 1000)
    others.go_on()


def test_loads_that_fail_leave_no_threads(registry: Registry, copy_golden: CopyGolden) -> None:
    folder = put(copy_golden("bert-seq", {}), tiny(added(NAN, to="nan")))
    tasks = Path("/proc/self/task")

    def fail() -> None:
        with pytest.raises(BadArtifactError):
            registry.load(str(folder), LoadOptions(intra_op_threads=4))

    fail()
    before = len(list(tasks.iterdir()))
    for _ in range(10):
        fail()
    assert len(list(tasks.iterdir())) <= before


def test_more_threads_than_can_be_started_are_refused(registry: Registry) -> None:
    for threads in (1025, 100_000, 2**31 - 1, 2**40):
        options = LoadOptions(intra_op_threads=threads)
        with pytest.raises(InvalidArgumentError, match=f"intra_op_threads is {threads}; give 0"):
            registry.load(str(GOLDEN / "bert-seq"), options)


# Weights beside an ONNX file


def external(location: str, **entries: int) -> onnx.ModelProto:
    """Return the tiny graph with its weight, 28 bytes, in another file."""
    model = tiny()
    (weight,) = [each for each in model.graph.initializer if each.name == "weight"]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    return model


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A file of the right size that does not belong to the model."""
    path = tmp_path / "outside.bin"
    path.write_bytes(np.full(7, 3, np.float32).tobytes())
    yield path
    assert path.read_bytes() == np.full(7, 3, np.float32).tobytes()


OUTSIDE = "only files in its own folder are read"
PLACES: dict[str, tuple[str, Mapping[str, int], str, type[SemanticError], str]] = {
    "above": ("../outside.bin", {}, "", BadArtifactError, OUTSIDE),
    "hidden above": ("sub/../../outside.bin", {}, "", BadArtifactError, OUTSIDE),
    "absolute": ("{outside}", {}, "", BadArtifactError, OUTSIDE),
    "nowhere": ("", {}, "", BadArtifactError, OUTSIDE),
    "an address": (
        *("*/_ORT_MEM_ADDR_/*", {"offset": 4096, "length": 28}, ""),
        *(BadArtifactError, OUTSIDE),
    ),
    "a link out of the folder": (
        *("w.bin", {}, "../outside.bin", BadArtifactError),
        "leads to .*/outside.bin, outside the folder; copy the file there",
    ),
    "a linked folder": (
        *("sub/outside.bin", {}, "..", BadArtifactError),
        "leads to .*/outside.bin, outside the folder",
    ),
    "a device": ("w.bin", {}, "/dev/zero", BadArtifactError, "not a regular file"),
    "a link to itself": ("w.bin", {}, "w.bin", NotFoundError, "Too many levels"),
    "missing": ("w.bin", {}, "", NotFoundError, "needs 'w.bin' beside it"),
    "too far": ("w.bin", {"offset": 2**62}, "file", BadArtifactError, "fetch both again"),
    "before": ("w.bin", {"offset": -4}, "file", BadArtifactError, "fetch both again"),
    "round the corner": ("w.bin", {"offset": 2**64 - 4}, "file", BadArtifactError, "fetch both"),
    "too short": ("w.bin", {"length": 4}, "file", BadArtifactError, "fetch both again"),
    "one byte too far": ("w.bin", {"offset": 1}, "file", BadArtifactError, "fetch both again"),
}


@pytest.mark.parametrize(
    ("location", "entries", "target", "error", "message"), PLACES.values(), ids=PLACES
)
def test_weights_that_lie_elsewhere_are_not_read(
    registry: Registry,
    others: Others,
    copy_golden: CopyGolden,
    outside: Path,
    location: str,
    entries: Mapping[str, int],
    target: str,
    error: type[SemanticError],
    message: str,
) -> None:
    folder = put(copy_golden("bert-seq", {}), external(location.format(outside=outside), **entries))
    if target == "file":
        (folder / "w.bin").write_bytes(outside.read_bytes())
    elif target:
        (folder / location.split("/")[0]).symlink_to(target)
    refused(registry, others, folder, error, message)


def test_weights_behind_links_of_a_cache_are_read(
    registry: Registry, copy_golden: CopyGolden, tmp_path: Path
) -> None:
    """Hugging Face caches link every file to a folder of blobs."""
    folder = put(copy_golden("bert-seq", {}), external("w.bin"))
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (folder / "w.bin").write_bytes(CONSTANTS["weight"].tobytes())
    for name in ("model.onnx", "w.bin", "config.json", "tokenizer.json"):
        (folder / name).rename(blobs / f"blob of {name}")
        (folder / name).symlink_to(f"../blobs/blob of {name}")
    plain = registry.load(str(put(copy_golden("bert-seq", {}), tiny())))
    handle = registry.load(str(folder))
    np.testing.assert_array_equal(
        registry.classify(handle, ["math law"]).logits,
        registry.classify(plain, ["math law"]).logits,
    )


def test_external_data_cut_by_one_byte(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    folder = put(copy_golden("bert-seq", {}), external("w.bin"))
    (folder / "w.bin").write_bytes(CONSTANTS["weight"].tobytes()[:-1])
    refused(registry, others, folder, BadArtifactError, "the file has 27; fetch both again")


def test_an_onnx_file_cut_anywhere(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    whole = tiny().SerializeToString()
    folder = copy_golden("bert-seq", {})
    for end in (len(whole) - 1, *range(1, len(whole), 37)):
        put(folder, whole[:end])
        with pytest.raises(SemanticError) as caught:
            registry.load(str(folder))
        assert caught.value.status in (Status.BAD_ARTIFACT, Status.UNSUPPORTED)
    others.go_on()
    refused(registry, others, put(folder, b""), BadArtifactError, "lacks version")


def test_bytes_that_are_no_file_of_the_task(
    registry: Registry, others: Others, copy_golden: CopyGolden
) -> None:
    for task in (Task.TOKEN_CLASSIFICATION, Task.EMBEDDING):
        folder = put(copy_golden("bert-seq", {}), tiny())
        options = LoadOptions(task=task)
        refused(registry, others, folder, UnsupportedError, "cannot do", options)
