"""Values of config.json, checked as they are read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..errors import BadArtifactError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Size:
    """A dimension and where it was read, so that a contradiction can name both sides."""

    key: str
    value: int


def read(
    config: Mapping[str, object],
    key: str,
    kind: type[_T],
    default: _T | None = None,
    place: str = "",
) -> _T:
    """Return a value of config.json of exactly the type ``kind``; null counts as absent.

    ``place`` names the table inside config.json that ``config`` is. A wrong type, or absence
    where there is no ``default``, is ``BadArtifactError``.
    """
    value = config.get(key)
    name = f"{place}.{key}" if place else key
    if value is None:
        if default is None:
            raise BadArtifactError(f"config.json lacks {name!r}; download it again")
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadArtifactError(
            f"config.json: {name!r} is of type {type(value).__name__}, not {kind.__name__};"
            f" correct it"
        )
    return value


def read_number(
    config: Mapping[str, object], key: str, default: float | None = None, place: str = ""
) -> float:
    """Return a number of config.json, written with or without a fraction; see ``read``."""
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return read(config, key, float, default, place)


def read_size(config: Mapping[str, object], key: str) -> Size:
    """Return a required positive integer of config.json together with its key."""
    value = read(config, key, int)
    if value < 1:
        raise BadArtifactError(f"config.json: {key!r} is {value}, not positive; correct it")
    return Size(key, value)
