"""Stored weights in a graph: checked when they are taken, left in their files as external data."""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from onnx import StringStringEntryProto, TensorProto, numpy_helper

from ..errors import BadArtifactError, UnsupportedError
from ..results import Float32
from ..weights import Tensor, load_array
from .config_values import Size, read

_TYPES: Final = {
    "F32": TensorProto.FLOAT,
    "F16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
}


class StoredWeights:
    """The weights of one graph by name, and which of them it took.

    ``own`` names those that are written into the graph itself, since ONNX Runtime reads the files
    of one folder only.
    """

    def __init__(self, weights: Mapping[str, Tensor], own: frozenset[str]) -> None:
        self.tensors = weights
        self.initializers: dict[str, TensorProto] = {}
        self._own = own

    def take(self, name: str, shape: tuple[Size, ...]) -> None:
        """Register a weight as an initializer of its name, in the precision of its file."""
        expected = f" [{', '.join(f'{size.key} {size.value}' for size in shape)}]"
        tensor = stored_tensor(self.tensors, name, expected)
        if tensor.shape != tuple(size.value for size in shape):
            raise BadArtifactError(
                f"weight {name!r} of {tensor.path.name} has shape {list(tensor.shape)}, expected"
                f"{expected}; config.json and weights do not belong together"
            )
        if tensor.dtype not in _TYPES:
            raise UnsupportedError(
                f"weight {name!r} is stored as {tensor.dtype}; store it as {', '.join(_TYPES)}"
            )
        if name in self._own:
            self.write(name, load_array(tensor))
            return
        proto = TensorProto(name=name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", tensor.path.name),
            ("offset", str(tensor.offset)),
            ("length", str(tensor.nbytes)),
        ):
            proto.external_data.append(StringStringEntryProto(key=key, value=value))
        self.initializers[name] = proto
        if self.folder != tensor.path.parent:
            raise BadArtifactError(
                f"weight files lie in {self.folder} and in {tensor.path.parent}, but ONNX"
                f" Runtime reads one folder; put them into one"
            )

    def write(self, name: str, values: Float32) -> None:
        """Write values into the graph itself."""
        self.initializers[name] = numpy_helper.from_array(values, name)

    def is_float(self, name: str) -> bool:
        """Tell whether a weight lies in the graph as float32."""
        return self.tensors[name].dtype == "F32" or name in self._own

    @property
    def taken(self) -> frozenset[str]:
        """Return the names of the weights that were taken."""
        return frozenset(self.tensors.keys() & self.initializers.keys())

    @property
    def folder(self) -> Path:
        """Return the folder of the weight files."""
        taken = (name for name in self.initializers if name in self.tensors)
        return self.tensors[next(name for name in taken if name not in self._own)].path.parent

    @property
    def dtype(self) -> str:
        """Return the dtype of the weights that were taken, joined by ``+`` where they differ."""
        return "+".join(sorted({self.tensors[name].dtype for name in self.taken}))

    def require_all(self, ignorable: Sequence[str]) -> None:
        """Refuse weights that were not taken and match no pattern of ``ignorable``.

        Part of the model would silently not run.
        """
        unused = sorted(
            name
            for name in self.tensors.keys() - self.initializers.keys()
            if name in self._own or not any(fnmatchcase(name, pattern) for pattern in ignorable)
        )
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise BadArtifactError(
                f"weights {', '.join(map(repr, unused[:3]))}{more} are no part of this model and"
                f" task; check that config.json, the weights and the task belong together"
            )


def stored_tensor(weights: Mapping[str, Tensor], name: str, expected: str = "") -> Tensor:
    """Return a stored weight; one that is missing is ``BadArtifactError``."""
    if name not in weights:
        raise BadArtifactError(
            f"weight {name!r}{expected} is missing from the safetensors files; check that the"
            f" task fits the model, or download it again"
        )
    return weights[name]


def count_labels(weights: Mapping[str, Tensor], config: Mapping[str, object], name: str) -> Size:
    """Return the number of labels: the rows of the head's weight, which config.json shares."""
    tensor = stored_tensor(weights, name)
    found = tensor.shape[0] if tensor.shape else 0
    names = read(config, "id2label", dict, {})
    # It may leave out some: read_labels decides on those.
    indices = [int(key) + 1 for key in names if re.fullmatch("[0-9]{1,9}", str(key))]
    stated = {
        "num_labels": read(config, "num_labels", int, found),
        "id2label": max(len(names), *indices, 0) if names else found,
    }
    for key, count in stated.items():
        if count != found or found < 1:
            raise BadArtifactError(
                f"config.json: {key!r} states {count} labels, weight {name!r} of"
                f" {tensor.path.name} has shape {list(tensor.shape)}; they do not belong"
                f" together"
            )
    return Size("labels", found)


def check_layers(weights: Collection[str], stem: str, layers: Size) -> None:
    """Require as many layers ``stem.0``, ``stem.1`` … among the weights as config.json says."""
    pattern = re.compile(re.escape(stem) + r"\.([0-9]{1,9})\.")
    matches = (pattern.match(name) for name in weights)
    stored = len({match[1] for match in matches if match})
    if stored != layers.value:
        raise BadArtifactError(
            f"config.json: {layers.key!r} is {layers.value}, the weights hold {stored} layers;"
            f" they do not belong together"
        )
