"""Inspect an ONNX file without opening its weights: inputs, outputs, operators, true precision.

The file is parsed with the ``onnx`` package, imported here only when a file is inspected. Names
of files and of outputs lie; what counts is read from the graph. Formats: onnx.proto (tensor
types, ``raw_data``, external data) and ONNX Runtime's contrib operators (packed weights).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from .descriptions import file_size, stays_inside
from .errors import BadArtifactError, NotFoundError, UnsupportedError
from .memory import require_bytes
from .onnx_checks import check_functions, count_embeddings

if TYPE_CHECKING:
    import onnx


_MAX_BYTES = 2**31 - 1  # the limit of a protobuf message
_LEAST_BYTES = 16 << 20  # what is asked for before a file is parsed, and twice its size
_MAX_NAME = 4096
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_INPUT_DTYPES = ("int64", "int32")
FLOAT_TYPES = ("float", "float16", "bfloat16", "double")
_DOMAINS = {"", "ai.onnx", "com.microsoft", "com.microsoft.nchwc"} | {
    f"ai.onnx.{part}" for part in ("ml", "training", "preview", "preview.training")
}
_BITS = (
    {"double": 64, "int64": 64, "uint64": 64, "float": 32, "int32": 32, "uint32": 32}
    | dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16)
    | dict.fromkeys(("int8", "uint8", "bool"), 8)
    | dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 8)
    | {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
)
_WEIGHT_NAMES = {"double": "fp64", "float": "fp32", "float16": "fp16", "bfloat16": "bf16"} | {
    f"{sign}int{bits}": f"int{bits}" for sign in ("", "u") for bits in (2, 4, 8)
}
_PACKED = {"MatMulNBits": 1, "GatherBlockQuantized": 0, "MatMulBnb4": 1}  # input that is packed
_LOOKUPS = {f"Gather{kind}" for kind in ("", "ND", "BlockQuantized")} | {
    f"{kind}EmbedLayerNormalization" for kind in ("", "Q")
}
_DAMAGED = "it is damaged or cut short; fetch it again"


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input: ``int64`` or ``int32``, shape [batch, tokens]; None where it is not declared.

    A dimension is a number, the name of a free one, or None.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxOutput:
    """An output: ONNX element type in lower case ("" = no tensor), rank and last dimension.

    None where the file does not say.
    """

    name: str
    dtype: str
    rank: int | None
    width: int | None


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """Facts of one ONNX file.

    ``external``: locations relative to the file's folder, with their sizes in bytes.
    ``weight_bytes``: bytes of weights by precision (``fp32``, ``fp16``, ``bf16``, ``int8``,
    ``int4``, …), biases included. ``dtype``: the precision that dominates by bytes among the
    weights that enter arithmetic; tables that are only looked up in do not count where there
    are others. "" = no weights. ``vocab_size``: rows of the table that the ids are looked up in,
    0 = unknown.
    """

    path: Path
    size: int
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[OnnxOutput, ...]
    external: tuple[tuple[str, int], ...]
    weight_bytes: Mapping[str, int]
    dtype: str
    vocab_size: int = 0


def inspect_onnx(path: Path) -> OnnxFile:
    """Read and check one ONNX file and the presence of its external data.

    Raises NotFoundError for a missing file or external data, BadArtifactError for a damaged
    file or external data outside its folder, UnsupportedError for operators of unknown domains,
    functions that unfold without end and inputs that a text model does not have. Holds the
    file's bytes while it runs.
    """
    size = file_size(path)
    if size is None:
        raise NotFoundError(f"{path} is missing; fetch it")
    model = _parse(path, size)
    nodes, tensors = _contents(model)
    texts = _texts(model, nodes, tensors)
    if not all(isinstance(text, str) and len(text) <= _MAX_NAME for text in texts):
        raise BadArtifactError(
            f"{path} holds names that are not UTF-8 or longer than {_MAX_NAME} characters; "
            f"{_DAMAGED}"
        )
    _check_operators(path, model, nodes)
    check_functions(path, model)
    weight_bytes, dtype = _precision(path, nodes, tensors)
    return OnnxFile(
        path=path,
        size=size,
        inputs=_inputs(path, model.graph),
        outputs=tuple(_output(value) for value in model.graph.output),
        external=_external_data(path, [tensor for _, tensor in tensors]),
        weight_bytes=weight_bytes,
        dtype=dtype,
        vocab_size=count_embeddings(nodes, tensors),
    )


def _parse(path: Path, size: int) -> onnx.ModelProto:
    """Parse the file and require what every model has."""
    import onnx

    if size > _MAX_BYTES:
        raise BadArtifactError(
            f"{path} has {size} bytes, ONNX allows {_MAX_BYTES}; export with external data"
        )
    require_bytes(max(2 * size, _LEAST_BYTES), f"to read {path}")
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError:
        raise
    except Exception as error:  # protobuf's own class has no type stubs
        raise BadArtifactError(f"{path} is not an ONNX file; {_DAMAGED}") from error
    if not (model.ir_version and model.opset_import and model.graph.output):
        raise BadArtifactError(f"{path} lacks version, operator set or outputs; {_DAMAGED}")
    return model


def _contents(
    model: onnx.ModelProto,
) -> tuple[list[onnx.NodeProto], list[tuple[str, onnx.TensorProto]]]:
    """Return all nodes and named tensors: graphs, graphs inside nodes, functions, constants."""
    nodes: list[onnx.NodeProto] = []
    tensors: list[tuple[str, onnx.TensorProto]] = []
    graphs = [model.graph]
    pending = [node for function in model.functions for node in function.node]
    while graphs or pending:
        if not pending:
            graph = graphs.pop()
            pending.extend(graph.node)
            tensors += [(tensor.name, tensor) for tensor in graph.initializer]
            tensors += [(item.values.name, item.values) for item in graph.sparse_initializer]
            continue
        node = pending.pop()
        nodes.append(node)
        for attribute in node.attribute:
            graphs += [attribute.g] if attribute.HasField("g") else []
            graphs += attribute.graphs
            constants = [attribute.t] if attribute.HasField("t") else []
            constants += attribute.tensors
            tensors += [(node.output[0] if node.output else "", item) for item in constants]
    return nodes, tensors


def _texts(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    tensors: Iterable[tuple[str, onnx.TensorProto]],
) -> Iterator[object]:
    """Yield every text that is used here; protobuf gives bytes for one that is not UTF-8."""
    for node in nodes:
        yield from (node.domain, node.op_type, *node.input, *node.output)
    for name, tensor in tensors:
        yield name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _check_operators(path: Path, model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Refuse operators that ONNX Runtime would need an extension library for."""
    functions = {(function.domain, function.name) for function in model.functions}
    for node in nodes:
        operator = (node.domain, node.op_type)
        if node.domain not in _DOMAINS and operator not in functions:
            raise UnsupportedError(
                f"{path} needs the custom operator {'::'.join(operator)!r}; export the model "
                "without it"
            )


def _inputs(path: Path, graph: onnx.GraphProto) -> tuple[OnnxInput, ...]:
    """Return the inputs, which must be those of a text model; initialisers are none."""
    initialisers = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in initialisers]
    if unknown := [value.name for value in values if value.name not in _INPUTS]:
        raise UnsupportedError(
            f"{path} wants the input {', '.join(map(repr, unknown))}; a text model has "
            f"{', '.join(_INPUTS)}"
        )
    if "input_ids" not in (value.name for value in values):
        raise UnsupportedError(f"{path} has no input 'input_ids'; export a text model")
    inputs = []
    for value in values:
        declared = value.type.tensor_type
        dtype = _dtype(declared.elem_type)
        shape = (
            tuple(_positive(dim.dim_value) or dim.dim_param or None for dim in declared.shape.dim)
            if declared.HasField("shape")
            else None
        )
        if dtype not in _INPUT_DTYPES or (shape is not None and len(shape) != 2):
            raise UnsupportedError(
                f"{path}: input {value.name!r} is {dtype or 'no tensor'} of shape {shape}; "
                "supported is int64 or int32 of shape [batch, tokens]"
            )
        inputs.append(OnnxInput(value.name, dtype, shape))
    return tuple(inputs)


def _output(value: onnx.ValueInfoProto) -> OnnxOutput:
    """Return what the file declares about an output."""
    declared = value.type.tensor_type
    dtype = _dtype(declared.elem_type)
    if not declared.HasField("shape"):
        return OnnxOutput(value.name, dtype, None, None)
    dims = declared.shape.dim
    return OnnxOutput(value.name, dtype, len(dims), _positive(dims[-1].dim_value) if dims else None)


def _positive(dimension: int) -> int | None:
    """Return a declared dimension; None for 0 and -1, which stand for an open one."""
    return dimension if dimension > 0 else None


def _dtype(number: int) -> str:
    """Return the ONNX element type in lower case; "" for none or one newer than the package."""
    from onnx import TensorProto

    if number == TensorProto.UNDEFINED or number not in TensorProto.DataType.values():
        return ""
    return str(TensorProto.DataType.Name(number)).lower()


def _stored_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return the bytes that the tensor's type and shape need; None for types of free size."""
    bits = _BITS.get(_dtype(tensor.data_type))
    return None if bits is None else -(-prod(tensor.dims) * bits // 8)


def _precision(
    path: Path, nodes: list[onnx.NodeProto], tensors: list[tuple[str, onnx.TensorProto]]
) -> tuple[Mapping[str, int], str]:
    """Return bytes of weights by precision, and the precision that dominates arithmetic."""
    users: dict[str, set[str]] = {}
    packed: dict[str, str] = {}
    for node in nodes:
        for position, name in enumerate(node.input):
            users.setdefault(name, set()).add(node.op_type)
            if _PACKED.get(node.op_type) == position:
                bits = [attribute.i for attribute in node.attribute if attribute.name == "bits"]
                packed[name] = f"int{bits[0] if bits else 4}"
    totals: Counter[str] = Counter()
    arithmetic: Counter[str] = Counter()
    for name, tensor in tensors:
        size = _stored_bytes(tensor)
        if size is not None and tensor.HasField("raw_data") and len(tensor.raw_data) != size:
            raise BadArtifactError(
                f"{path}: tensor {name!r} holds {len(tensor.raw_data)} bytes, its shape needs "
                f"{size}; {_DAMAGED}"
            )
        label = packed.get(name) or _WEIGHT_NAMES.get(_dtype(tensor.data_type))
        if label and size:
            totals[label] += size
            if not users.get(name, set()) <= _LOOKUPS:
                arithmetic[label] += size
    ranked = sorted((arithmetic or totals).items(), key=lambda item: (-item[1], item[0]))
    return MappingProxyType(dict(totals)), ranked[0][0] if ranked else ""


def _external_data(path: Path, tensors: Iterable[onnx.TensorProto]) -> tuple[tuple[str, int], ...]:
    """Check the external data of all tensors; return the files' locations and sizes."""
    from onnx import TensorProto

    # As in ONNX Runtime: beside the file, or beside what the file is a link to (a cache of blobs).
    roots = (Path(os.path.realpath(path.parent)), Path(os.path.realpath(path)).parent)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if location not in sizes:
            sizes[location] = _external_size(path, location, roots)
        needed = _stored_bytes(tensor)
        offset = _number(entries.get("offset", "0"))
        length = _number(entries.get("length", str(needed)))
        if (
            offset is None
            or length is None
            or needed not in (None, length)
            or offset + length > sizes[location]
        ):
            raise BadArtifactError(
                f"{path}: tensor {tensor.name!r} needs {needed} bytes, at offset {offset} of "
                f"{location!r}, length {length}; the file has {sizes[location]}; fetch both again"
            )
    return tuple(sorted(sizes.items()))


def _number(text: str) -> int | None:
    """Return the number that a text spells; None where it spells none."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def _external_size(path: Path, location: str, roots: tuple[Path, Path]) -> int:
    """Return the size of an external data file, which must lie within one of ``roots``."""
    # The runtime takes a location with this tag for an address in memory.
    if not location or not stays_inside(location) or "_ORT_MEM_ADDR_" in location:
        raise BadArtifactError(
            f"{path} points to {location!r} for weights; only files in its own folder are read"
        )
    target = path.parent / location
    size = file_size(target)
    if size is None:
        raise NotFoundError(f"{path} needs {location!r} beside it; fetch that file too")
    real = Path(os.path.realpath(target))
    if not any(real.is_relative_to(root) for root in roots):
        raise BadArtifactError(f"{target} leads to {real}, outside the folder; copy the file there")
    return size
