"""Linear layers and embedding tables in int8, quantized here without calibration data.

A weight is int8 times one scale for each output channel, a table int8 times one for each row,
symmetric around 0. What a linear layer reads is quantized while it runs, each row by itself, so
that an answer does not depend on what runs beside it: x = low + step · q, with the lowest value of
the row, and q from 0 to ``steps``. Then x Wᵀ + b = step · (q Wᵀ) + low · ΣW + b, where ΣW sums
each channel of the weight as it is in int8.

On CPU only uint8 × int8 is fast: int8 × int8 took 3 to 4 × of the time of fp32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from onnx import StringStringEntryProto, TensorProto

from ..adaptation import Update
from ..errors import BadArtifactError
from ..initializers import Initializer, Make, make_zeros
from ..results import Float32
from ..weights import Tensor, load_array, load_rows
from .finished import FUSED
from .stored import StoredWeights

if TYPE_CHECKING:
    from .builder import GraphBuilder

MOST_INPUTS: Final = (2**31 - 1) // (255 * 127)  # beyond it a sum could leave int32
_MOST: Final = 127  # of an int8, in both directions
# Of a weight as float32; the C heap keeps what it gave in larger pieces.
_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Rows:
    """A value ``[rows, width]`` in the graph: uint8, what its rows are multiplied by and begin at.

    ``step`` is float32 ``[rows, 1]``, ``low`` float32 ``[rows, 2]``: the lowest value, and 1.
    """

    values: str
    step: str
    low: str


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A stored matrix whose rows become int8; values of the graph, and what makes them."""

    initializers: tuple[TensorProto, ...]
    make: Make


class Int8:
    """What one graph has in int8, while it is ``on``; ``makes`` give the values of that.

    ``rows`` are values that are quantized already, by their names. It does not hold the builder,
    which holds it: the two would stay in memory for a while.
    """

    def __init__(self, stored: StoredWeights, steps: int) -> None:
        self.on = steps > 0
        self.steps = steps
        self.rows: dict[str, Rows] = {}
        self.makes: dict[str, Make] = {}
        self._stored = stored

    def linear(
        self, builder: "GraphBuilder", x: str, name: str, update: Update | None, *, biased: bool
    ) -> str:
        """Apply a linear layer whose weights were taken: float32 ``[rows, outputs]``."""
        tensors = self._stored.tensors
        bias = tensors[f"{name}.bias"] if biased else None
        weight = quantize_linear(tensors[f"{name}.weight"], bias, update)
        if x not in self.rows:
            self.rows[x] = quantize_rows(builder, x, self.steps)
        return multiply(builder, self.rows[x], self._taken(weight))

    def look_up(self, builder: "GraphBuilder", ids: str, name: str) -> str:
        """Look ids of any shape up in a table that was taken: float32 ``[..., width]``."""
        op, table = builder.op, self._taken(quantize_table(self._stored.tensors[name]))
        values, scales = (each.name for each in table.initializers)
        rows = op("Cast", [op("Gather", [values, ids])], {"to": TensorProto.FLOAT})
        return op("Mul", [rows, op("Gather", [scales, ids])])

    def _taken(self, quantized: QuantizedTensor) -> QuantizedTensor:
        """Remember a tensor whose values a session is to be handed over."""
        self.makes[quantized.initializers[0].name] = quantized.make
        self._stored.initializers.update({each.name: each for each in quantized.initializers})
        return quantized


def quantize_rows(builder: "GraphBuilder", x: str, steps: int) -> Rows:
    """Quantize ``[rows, width]`` by rows. One of equal values is exact: its step is 0."""
    op, last = builder.op, builder.integers(-1)
    high, low = (op(kind, [x, last], {"keepdims": 1}) for kind in ("ReduceMax", "ReduceMin"))
    step = op("Mul", [op("Sub", [high, low]), builder.scalar(1 / steps)])
    scales = op("Reshape", [step, last])
    values = op("QuantizeLinear", [op("Sub", [x, low]), scales], {"axis": 0})
    return Rows(values, step, op("Pad", [low, builder.integers(0, 0, 0, 1), builder.scalar(1.0)]))


def multiply(builder: "GraphBuilder", x: Rows, weight: QuantizedTensor) -> str:
    """Apply a linear layer: float32 ``[rows, outputs]``."""
    op, (values, scales, offsets) = builder.op, (each.name for each in weight.initializers)
    operands = [x.values, values, builder.scalar(1.0), scales]
    y = op("MatMulIntegerToFloat", operands, domain=FUSED)
    return op("Gemm", [x.low, offsets, op("Mul", [y, x.step])])


def quantize_linear(weight: Tensor, bias: Tensor | None, update: Update | None) -> QuantizedTensor:
    """Quantize a linear layer, ``update`` added to its weight.

    Its values are int8 ``[inputs, outputs]``, scales ``[outputs]``, and ``[2, outputs]``: the sums
    of channels, and the bias.
    """
    outputs, inputs = weight.shape
    names = [f"{weight.name}/{part}" for part in ("int8", "scales", "offsets")]
    shapes = (inputs, outputs), (outputs,), (2, outputs)

    def make() -> Sequence[Initializer]:
        values = make_zeros(names[0], shapes[0], np.int8)
        scales, offsets = (
            make_zeros(name, shape, np.float32)
            for name, shape in zip(names[1:], shapes[1:], strict=True)
        )
        for rows, block in _blocks(weight):
            if update is not None:
                with np.errstate(all="ignore"):  # what overflows is refused
                    block += update.up[rows] @ update.down
            quantized, scales.values[rows] = _symmetric(block, weight)
            values.values[:, rows] = quantized.T
            sums = quantized.sum(axis=1, dtype=np.int32)
            with np.errstate(over="ignore"):  # refused by the first run
                offsets.values[0, rows] = sums * scales.values[rows]
        if bias is not None:
            offsets.values[1] = load_array(bias)
        return values, scales, offsets

    kinds = (TensorProto.INT8, TensorProto.FLOAT, TensorProto.FLOAT)
    return QuantizedTensor(_placeholders(names, kinds, shapes), make)


def quantize_table(table: Tensor) -> QuantizedTensor:
    """Quantize a table: int8 ``[rows, width]`` and scales ``[rows, 1]``."""
    names = [f"{table.name}/{part}" for part in ("int8", "scales")]
    shapes = table.shape, (table.shape[0], 1)

    def make() -> Sequence[Initializer]:
        values = make_zeros(names[0], shapes[0], np.int8)
        scales = make_zeros(names[1], shapes[1], np.float32)
        for rows, block in _blocks(table):
            values.values[rows], scales.values[rows, 0] = _symmetric(block, table)
        return values, scales

    kinds = (TensorProto.INT8, TensorProto.FLOAT)
    return QuantizedTensor(_placeholders(names, kinds, shapes), make)


def _placeholders(
    names: Sequence[str], kinds: Sequence[int], shapes: Sequence[tuple[int, ...]]
) -> tuple[TensorProto, ...]:
    """Return initializers whose values a session is handed over."""
    found = []
    for name, kind, shape in zip(names, kinds, shapes, strict=True):
        proto = TensorProto(name=name, data_type=kind, dims=shape)
        proto.data_location = TensorProto.EXTERNAL
        proto.external_data.append(StringStringEntryProto(key="location", value="quantized"))
        found.append(proto)
    return tuple(found)


def _blocks(tensor: Tensor) -> Iterator[tuple[slice, Float32]]:
    """Read a matrix as float32, some rows at a time."""
    count, width = tensor.shape
    rows = max(1, _BLOCK_BYTES // (4 * width))
    for first in range(0, count, rows):
        end = min(first + rows, count)
        yield slice(first, end), load_rows(tensor, first, end)


def _symmetric(values: Float32, tensor: Tensor) -> tuple[NDArray[np.int8], Float32]:
    """Return rows as int8 and a scale for each."""
    scales: Float32 = np.maximum(values.max(axis=1), -values.min(axis=1)) / np.float32(_MOST)
    if not np.isfinite(scales).all():
        raise BadArtifactError(
            f"weight {tensor.name!r} of {tensor.path} holds NaN or infinity; download it again"
        )
    quotients = values / np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.rint(quotients, out=quotients).astype(np.int8), scales
