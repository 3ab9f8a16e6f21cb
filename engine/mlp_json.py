"""Read and write MLP selectors as JSON: the form of semantic-router's ``mlp`` selection.

An object with ``algorithm`` ("mlp"), ``trained``, ``model_names``, ``feature_dim``,
``n_classes``, ``hidden_sizes``, ``dropout`` and ``layers``; each layer is an object with its
``type`` and its numbers, weights of ``linear`` as one list per output.
"""

import json
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeGuard

import numpy as np

from .errors import BadArtifactError, TooLongError
from .mlp import BatchNorm, Dropout, Layer, Linear, MlpSelector, Relu
from .results import Float32
from .strict_json import parse_json

MAX_JSON_BYTES = 64 << 20  # nothing else runs while it is parsed
_MAX_SIZE = 2**31 - 1
_ALGORITHM = "mlp"
_DEFAULT_EPS = 1e-5
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def read_selector(text: str) -> MlpSelector:
    """Read a selector; keys that the form does not have are left out.

    Raise TooLongError above 64 MiB; BadArtifactError, naming the key, for what is missing, of
    another type or size, no finite float32, or contradicts the rest.
    """
    if len(text) > MAX_JSON_BYTES:
        raise TooLongError(
            f"the JSON of the selector has {len(text)} characters; at most {MAX_JSON_BYTES} are "
            "read, write fewer digits or train a smaller one"
        )
    try:
        parsed = parse_json(text)
    except ValueError as error:
        raise BadArtifactError(
            f"the JSON of the selector is damaged: {error}; write it again"
        ) from None
    values = _Values("the JSON of the selector", parsed)
    if values.text("algorithm") != _ALGORITHM:
        values.refuse("algorithm", f"{_ALGORITHM!r}")
    names = values.texts("model_names")
    if values.size("n_classes") != len(names):
        values.refuse("n_classes", f"{len(names)}, as many as model_names")
    trained = values.flag("trained")
    feature_dim = width = values.size("feature_dim")
    layers: list[Layer] = []
    for index, described in enumerate(values.items("layers")):
        part = _Values(f"layer {index} of the selector", described)
        read = _READERS.get(part.text("type"))
        if read is None:
            part.refuse("type", f"one of {', '.join(_READERS)}")
        layer, width = read(part, width)
        layers.append(layer)
    if (trained or layers) and not (layers and width == len(names) and names):
        raise BadArtifactError(
            f"the {len(layers)} layers of the selector give {width} outputs for {len(names)} "
            "model_names; write all layers and all names"
        )
    return MlpSelector(
        trained=trained,
        model_names=names,
        feature_dim=feature_dim,
        hidden_sizes=values.sizes("hidden_sizes"),
        dropout=values.number("dropout"),
        layers=tuple(layers),
    )


def write_selector(selector: MlpSelector) -> str:
    """Write the JSON from which ``read_selector`` makes an equal selector."""
    return json.dumps(
        {
            "algorithm": _ALGORITHM,
            "trained": selector.trained,
            "model_names": selector.model_names,
            "feature_dim": selector.feature_dim,
            "n_classes": len(selector.model_names),
            "hidden_sizes": selector.hidden_sizes,
            "dropout": selector.dropout,
            "layers": [_describe(layer) for layer in selector.layers],
        },
        ensure_ascii=False,
    )


class _Values:
    """The values of one JSON object, each with the type that its key asks for."""

    def __init__(self, place: str, values: object) -> None:
        if not isinstance(values, dict):
            raise BadArtifactError(f"{place} is not an object; write it again")
        self._place = place
        self._values: Mapping[str, object] = values

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise BadArtifactError for the value of a key."""
        state = "is not" if key in self._values else "is missing; it must be"
        raise BadArtifactError(f"{self._place}: {key!r} {state} {expected}")

    def has(self, key: str) -> bool:
        """Tell whether there is a value, and not null."""
        return self._values.get(key) is not None

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._values.get(key)
        return value if isinstance(value, str) else self.refuse(key, "a text")

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._values.get(key)
        return value if isinstance(value, bool) else self.refuse(key, "true or false")

    def size(self, key: str) -> int:
        """Return a whole number of 0 to 2^31 − 1."""
        value = self._values.get(key)
        return value if _is_size(value) else self.refuse(key, f"a whole number up to {_MAX_SIZE}")

    def number(self, key: str, least: float = 0.0, most: float = 1.0) -> float:
        """Return a number within bounds."""
        value = self._values.get(key)
        if not _is_number(value) or not least <= value <= most:
            self.refuse(key, f"a number from {least} to {most}")
        return float(value)

    def items(self, key: str) -> list[object]:
        """Return a list."""
        value = self._values.get(key)
        return value if isinstance(value, list) else self.refuse(key, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts that can be C strings, none empty."""
        texts = tuple(item for item in self.items(key) if isinstance(item, str))
        if len(texts) < len(self.items(key)) or any(not t or "\0" in t for t in texts):
            self.refuse(key, "a list of names without NUL, none empty")
        return texts

    def sizes(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        sizes = tuple(item for item in self.items(key) if _is_size(item))
        if len(sizes) < len(self.items(key)):
            self.refuse(key, "a list of whole numbers")
        return sizes

    def vector(self, key: str, length: int) -> Float32:
        """Return float32[length]."""
        return self._array(key, self.items(key), f"{length} finite numbers of float32", length)

    def matrix(self, key: str, rows: int, columns: int) -> Float32:
        """Return float32[rows, columns]."""
        lists = self.items(key)
        expected = f"{rows} lists of {columns} finite numbers of float32"
        flat: list[object] = []
        for row in lists:
            if not isinstance(row, list) or len(row) != columns:
                self.refuse(key, expected)
            flat += row
        if len(lists) != rows:
            self.refuse(key, expected)
        return self._array(key, flat, expected, rows * columns).reshape(rows, columns)

    def _array(self, key: str, items: list[object], expected: str, length: int) -> Float32:
        if len(items) != length or not all(map(_is_number, items)):
            self.refuse(key, expected)
        try:
            with np.errstate(over="ignore"):  # what overflows is refused
                array = np.array(items, np.float64).astype(np.float32)
        except OverflowError:  # a whole number beyond float64
            self.refuse(key, expected)
        if not np.isfinite(array).all():
            self.refuse(key, expected)
        return array


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) is float or type(value) is int  # True is an int by inheritance


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_SIZE


def _read_linear(values: _Values, width: int) -> tuple[Layer, int]:
    inputs, outputs = values.size("in_features"), values.size("out_features")
    if inputs != width:
        values.refuse("in_features", f"{width}, as many as come from the layers before")
    weight = values.matrix("weight", outputs, inputs)
    bias = values.vector("bias", outputs) if values.has("bias") else None
    return Linear(weight, bias), outputs


def _read_relu(values: _Values, width: int) -> tuple[Layer, int]:
    del values
    return Relu(), width


def _read_batch_norm(values: _Values, width: int) -> tuple[Layer, int]:
    if values.size("num_features") != width:
        values.refuse("num_features", f"{width}, as many as come from the layers before")

    def vector(key: str, default: float) -> Float32:
        if values.has(key):
            return values.vector(key, width)
        return np.full(width, default, np.float32)

    eps = values.number("eps", most=_MAX_FLOAT32) if values.has("eps") else _DEFAULT_EPS
    variance = vector("running_var", 1.0)
    if not (variance + np.float32(eps) > 0).all():
        values.refuse("running_var", "above 0 with eps")
    layer = BatchNorm(
        weight=vector("weight", 1.0),
        bias=vector("bias", 0.0),
        mean=vector("running_mean", 0.0),
        variance=variance,
        eps=eps,
    )
    return layer, width


def _read_dropout(values: _Values, width: int) -> tuple[Layer, int]:
    return Dropout(values.number("p")), width


# Each takes the width that comes from the layers before, and gives its own.
_READERS: Mapping[str, Callable[[_Values, int], tuple[Layer, int]]] = {
    "linear": _read_linear,
    "relu": _read_relu,
    "batch_norm": _read_batch_norm,
    "dropout": _read_dropout,
}


def _describe(layer: Layer) -> dict[str, object]:
    match layer:
        case Linear(weight, bias):
            return {
                "type": "linear",
                "in_features": weight.shape[1],
                "out_features": weight.shape[0],
                "weight": weight.tolist(),
                "bias": None if bias is None else bias.tolist(),
            }
        case BatchNorm():
            return {
                "type": "batch_norm",
                "num_features": len(layer.weight),
                "weight": layer.weight.tolist(),
                "bias": layer.bias.tolist(),
                "running_mean": layer.mean.tolist(),
                "running_var": layer.variance.tolist(),
                "eps": layer.eps,
            }
        case Dropout(p):
            return {"type": "dropout", "p": p}
        case Relu():
            return {"type": "relu"}
