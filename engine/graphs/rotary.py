"""Rotary position embeddings: what config.json says of them, and their blocks of a graph.

Dimension i of a head turns together with dimension i + depth / 2 by the angle position ×
frequency i (arXiv 2104.09864, in the order of transformers); yarn stretches the slow frequencies
and scales cosine and sine (arXiv 2309.00071). transformers 4 writes a theta per kind of layer and
one ``rope_scaling``; transformers 5 writes ``rope_parameters``, with one table inside for each
kind of layer where these differ. Frequencies and angles are rounded to float32 as there: at 8,192
tokens that already shows in the fourth digit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from ..errors import BadArtifactError, UnsupportedError
from .blocks import token_count, token_positions
from .builder import GraphBuilder
from .config_values import Size, read, read_number, read_size
from .finished import FUSED

_TYPES: Final = ("default", "yarn")
_ORIGINAL: Final = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Theta:
    """Where transformers 4 writes a base of the frequencies, and what it is where nothing does."""

    key: str
    default: float


@dataclass(frozen=True, slots=True)
class Rotary:
    """Frequencies in radians per token, one for two dimensions; ``factor`` of cosine and sine."""

    frequencies: tuple[float, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class Tables:
    """The graph's values for cosine and sine, float32 ``[tokens, depth / 2]``."""

    cosine: str
    sine: str


def read_rotary(
    config: Mapping[str, object],
    depth: Size,
    theta: Theta,
    layer_type: str | None = None,
    *,
    scaled: bool = True,
) -> Rotary:
    """Read the rotation of heads of ``depth`` dimensions, in either dialect.

    With ``layer_type`` ``rope_parameters`` holds a table of that name, else it is that table.
    Without ``scaled`` the ``rope_scaling`` of transformers 4 is for other layers. Raises
    ``UnsupportedError`` for a type of scaling that is not built, ``BadArtifactError`` for values
    that are ill-typed, out of range or contradict each other.
    """
    if depth.value % 2:
        raise BadArtifactError(
            f"config.json: {depth.key} {depth.value} is odd, rotary positions turn pairs; correct"
            f" it"
        )
    where, table = _table(config, layer_type)
    base = _one_of(config, theta.key, table, "rope_theta", where)
    base = theta.default if base is None else base
    if not 1.0 < base < math.inf:
        raise BadArtifactError(f"config.json: {theta.key} is {base}, not above 1; correct it")
    if read_number(table, "partial_rotary_factor", 1.0, where) != 1.0 or (
        read_number(config, "partial_rotary_factor", 1.0) != 1.0
    ):
        raise UnsupportedError(
            "config.json: 'partial_rotary_factor' is not 1; turning a part of each head is not"
            " supported"
        )
    scaling = read(config, "rope_scaling", dict, {}) if scaled else {}
    for key in scaling.keys() & table.keys():
        if scaling[key] != table[key]:
            raise BadArtifactError(
                f"config.json: 'rope_scaling' states {key} {scaling[key]!r}, {where} states"
                f" {table[key]!r}; correct one"
            )
    where = "rope_scaling" if scaling else where
    table = {**table, **scaling}
    kinds = {key: read(table, key, str, "", where) for key in ("rope_type", "type")}
    named = {kind for kind in kinds.values() if kind} or {"default"}
    if len(named) > 1:
        raise BadArtifactError(
            f"config.json: {where} states rope_type {kinds['rope_type']!r} and type"
            f" {kinds['type']!r}; correct one"
        )
    (kind,) = named
    if kind not in _TYPES:
        raise UnsupportedError(
            f"config.json: {where} states rope_type {kind!r}, which is not supported; supported"
            f" are {', '.join(_TYPES)}"
        )
    exponents = np.arange(0, depth.value, 2, dtype=np.float32) / np.float32(depth.value)
    periods = np.power(float(base), exponents.astype(np.float64)).astype(np.float32)
    if kind == "yarn":
        return _yarn(config, table, where, base, periods, nested=layer_type is not None)
    return Rotary(tuple((np.float32(1.0) / periods).tolist()), 1.0)


def rotary_tables(builder: GraphBuilder, rotary: Rotary, limit: int) -> Tables:
    """Compute cosine and sine of all positions of the run; once for all layers that share them.

    A run has up to ``limit`` tokens. A graph without branches looks them up in constants: who takes
    such a graph may compute in bfloat16, which has no odd numbers above 256.
    """
    if builder.branches.whole is None:
        frequencies = np.array(rotary.frequencies, np.float32)
        turns = np.arange(limit, dtype=np.float32)[:, None] * frequencies
        end = builder.op("Unsqueeze", [token_count(builder), builder.integers(0)])
        bounds = [builder.integers(0), end, builder.integers(0)]
        return Tables(
            *(
                builder.op("Slice", [builder.array(table * np.float32(rotary.factor)), *bounds])
                for table in (np.cos(turns), np.sin(turns))
            )
        )
    positions = builder.op("Cast", [token_positions(builder)], {"to": TensorProto.FLOAT})
    column = builder.op("Unsqueeze", [positions, builder.integers(1)])
    angles = builder.op("Mul", [column, builder.floats(*rotary.frequencies)])
    cosine, sine = (builder.op(kind, [angles]) for kind in ("Cos", "Sin"))
    if rotary.factor != 1.0:
        factor = builder.scalar(rotary.factor)
        cosine, sine = (builder.op("Mul", [value, factor]) for value in (cosine, sine))
    return Tables(cosine, sine)


def rotate(builder: GraphBuilder, x: str, tables: Tables, heads: int, depth: int) -> str:
    """Turn queries or keys ``[batch * tokens, heads * depth]`` by their positions."""
    width = Size("", heads * depth)
    if builder.fused:
        inputs = [builder.unfold(x, width.value), builder.integers(0)]
        inputs += [tables.cosine, tables.sine]
        turned = builder.op("RotaryEmbedding", inputs, {"interleaved": 0}, FUSED)
        return builder.fold(turned, width)
    x = builder.unfold(x, heads, depth)
    half, whole = builder.integers(depth // 2), builder.integers(depth)
    last, start = builder.integers(-1), builder.integers(0)
    first = builder.op("Slice", [x, start, half, last])
    second = builder.op("Slice", [x, half, whole, last])
    cosine, sine = (
        builder.op("Unsqueeze", [table, builder.integers(1)])
        for table in (tables.cosine, tables.sine)
    )
    left = builder.op(
        "Sub", [builder.op("Mul", [first, cosine]), builder.op("Mul", [second, sine])]
    )
    right = builder.op(
        "Add", [builder.op("Mul", [second, cosine]), builder.op("Mul", [first, sine])]
    )
    return builder.fold(builder.op("Concat", [left, right], {"axis": -1}), width)


def _table(
    config: Mapping[str, object], layer_type: str | None
) -> tuple[str, Mapping[str, object]]:
    """Return the part of ``rope_parameters`` for a kind of layer, and its name."""
    parameters = read(config, "rope_parameters", dict, {})
    if layer_type is None:
        if nested := [key for key, value in parameters.items() if isinstance(value, dict)]:
            raise BadArtifactError(
                f"config.json: 'rope_parameters' has a table {nested[0]!r}, but all layers of this"
                f" family turn alike; correct it"
            )
        return "rope_parameters", parameters
    for key, value in parameters.items():
        if value is not None and not isinstance(value, dict):
            raise BadArtifactError(
                f"config.json: 'rope_parameters' states {key!r} for all layers, this family has"
                f" one table for each kind of layer; correct it"
            )
    where = f"rope_parameters.{layer_type}"
    return where, read(parameters, layer_type, dict, {}, "rope_parameters")


def _one_of(
    config: Mapping[str, object],
    old: str,
    table: Mapping[str, object],
    new: str,
    where: str,
) -> float | None:
    """Return what one of two dialects states, or both alike."""
    found = {
        name: read_number(values, key, place=place)
        for name, values, key, place in (
            (f"{old!r}", config, old, ""),
            (f"{where}.{new}", table, new, where),
        )
        if values.get(key) is not None
    }
    if len(set(found.values())) > 1:
        stated = ", ".join(f"{name} {value}" for name, value in found.items())
        raise BadArtifactError(f"config.json states {stated}; correct one")
    return next(iter(found.values()), None)


def _yarn(
    config: Mapping[str, object],
    table: Mapping[str, object],
    where: str,
    base: float,
    periods: NDArray[np.float32],
    *,
    nested: bool,
) -> Rotary:
    """Stretch what turns less than ``beta_slow`` times over the original length by ``factor``.

    What turns more than ``beta_fast`` times stays; between the two dimensions it is a ramp.
    ``nested``: there is a table for each kind of layer.
    """
    limit = read_size(config, "max_position_embeddings")
    original = _original_length(config, table, where, limit.value, nested)
    fast, slow = (
        read_number(table, key, default, where) or default
        for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    factor = read_number(table, "factor", limit.value / max(original, 1), where)
    if not (original > 0 and 1.0 <= factor < math.inf and 0.0 < slow <= fast < math.inf):
        raise BadArtifactError(
            f"config.json: {where} has factor {factor}, original_max_position_embeddings"
            f" {original}, beta_fast {fast}, beta_slow {slow}; yarn needs a factor from 1, a"
            f" positive length and beta_fast above beta_slow"
        )
    if not read(table, "truncate", bool, True, where):
        raise UnsupportedError(f"config.json: {where} states truncate false; it is not supported")
    pairs = len(periods)
    low, high = (
        2 * pairs * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (fast, slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * pairs - 1)
    ramp = (np.arange(pairs, dtype=np.float32) - low) / ((high - low) or 0.001)
    stretched = np.clip(ramp, 0.0, 1.0).astype(np.float32)
    kept = np.float32(1.0) - stretched
    one = np.float32(1.0)
    frequencies = one / (np.float32(factor) * periods) * (one - kept) + one / periods * kept
    return Rotary(tuple(frequencies.tolist()), _yarn_factor(table, where, factor))


def _original_length(
    config: Mapping[str, object],
    table: Mapping[str, object],
    where: str,
    limit: int,
    nested: bool,
) -> int:
    """Return the length in tokens that yarn stretches, by default the ``limit``.

    The key may stand in the table and beside it. transformers lets the latter win where all
    layers turn alike and passes over it elsewhere; here both must mean the same.
    """
    inside = read(table, _ORIGINAL, int, limit, where)
    if config.get(_ORIGINAL) is None:
        return inside
    beside = read(config, _ORIGINAL, int)
    silent = table.get(_ORIGINAL) is None
    if beside != inside and (nested or not silent):
        stated = f"does not state it, which stands for {inside}" if silent else f"states {inside}"
        raise BadArtifactError(
            f"config.json: {_ORIGINAL!r} is {beside}, {where} {stated}; correct one"
        )
    return beside


def _yarn_factor(table: Mapping[str, object], where: str, factor: float) -> float:
    """Return what cosine and sine are multiplied by, so that scores grow by its square."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    if table.get("attention_factor") is not None:
        stated = read_number(table, "attention_factor", place=where)
        if not 0.0 < stated < math.inf:
            raise BadArtifactError(
                f"config.json: {where} states attention_factor {stated}, not a positive number;"
                f" correct it"
            )
        return stated
    part, whole = (read_number(table, key, 0.0, where) for key in ("mscale", "mscale_all_dim"))
    return scale(part) / scale(whole) if part and whole else scale(1.0)
