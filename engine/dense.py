"""The dense layers that follow the pooling of a sentence-transformers model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .artifacts import ModelSpec
from .errors import BadArtifactError
from .results import Float32
from .weights import Tensor, load_array, read_weights


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """``activation(x @ weight.T + bias)``: weight float32[out, in], bias float32[out] or None."""

    weight: Float32
    bias: Float32 | None
    activation: str


def load_dense(spec: ModelSpec) -> tuple[DenseLayer, ...]:
    """Read the dense layers; raise BadArtifactError where they are not as their files say."""
    layers = []
    for dense in spec.dense:
        tensors = read_weights(dense.weights.parent)
        shape = dense.out_features, dense.in_features
        weight = _tensor(tensors, dense.weights, "linear.weight", shape)
        bias = _tensor(tensors, dense.weights, "linear.bias", shape[:1]) if dense.bias else None
        layers.append(DenseLayer(weight, bias, dense.activation))
    return tuple(layers)


def _tensor(
    tensors: Mapping[str, Tensor], path: Path, name: str, shape: tuple[int, ...]
) -> Float32:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
        raise BadArtifactError(
            f"{path}: {name} is {found}, config.json says {list(shape)}; fetch the folder again"
        )
    return load_array(tensor)
