"""Read the JSON files with which a model folder describes itself, strictly and within bounds."""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TypeVar

from .errors import BadArtifactError, NotFoundError
from .strict_json import parse_json

MAX_DESCRIPTION_BYTES = 8 << 20  # nothing else runs while it is parsed
SENTINEL_LENGTH = 1_000_000
_MAX_NAME = 1000
MAX_NUMBER = 2**31 - 1  # no size of a model comes near it

_TYPE_NAMES = {bool: "true or false", int: "a whole number", str: "a text", list: "a list"}
_T = TypeVar("_T", bool, int, str, list[object], dict[str, object])


@dataclass(frozen=True, slots=True)
class Description:
    """One JSON object of an artifact and the file it stands in."""

    path: Path
    values: Mapping[str, object]

    def get(self, key: str, kind: type[_T]) -> _T | None:
        """Return the value of ``key``; None where it is absent or null.

        Raises BadArtifactError naming file and key where the value is of another type.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            expected = _TYPE_NAMES.get(kind, "an object")
            raise BadArtifactError(f"{self.path}: {key!r} is not {expected}; correct it")
        return value

    def positive(self, key: str) -> int | None:
        """Return a whole number of 1 to 2^31 − 1; None where the key is absent or null."""
        return self.bounded(key, 1)

    def bounded(self, key: str, least: int) -> int | None:
        """Return a whole number of ``least`` to 2^31 − 1; None where the key is absent or null."""
        value = self.get(key, int)
        if value is not None and not least <= value <= MAX_NUMBER:
            raise BadArtifactError(
                f"{self.path}: {key!r} is {_shortened(value)}; it must be at least {least} and at "
                f"most {MAX_NUMBER}"
            )
        return value

    def length(self, key: str) -> int | None:
        """Return a length in tokens; None where it is absent, null or a sentinel for "no limit".

        Tokenizers without a limit write 10^30, also as a float: above 10^6 is no limit.
        """
        value = self.values.get(key)
        if isinstance(value, int | float) and value > SENTINEL_LENGTH:
            return None
        return self.positive(key)


def file_size(path: Path) -> int | None:
    """Return the bytes of a regular file; None where nothing of that name exists.

    Raises NotFoundError for a dangling link or a refusal of the system, BadArtifactError for
    what is no regular file (opening a pipe would wait for ever).
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise NotFoundError(f"{path} is a link to nothing; fetch the file again") from None
        return None
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise BadArtifactError(f"{path} is not a regular file; put the file itself there")
    return status.st_size


def stays_inside(name: str) -> bool:
    """Tell whether a file name written in an artifact is usable and names no place outside it."""
    path = PurePosixPath(name)
    usable = name.isprintable() and len(name) <= _MAX_NAME
    return usable and not path.is_absolute() and ".." not in path.parts


def _shortened(value: int) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:20]}…"


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder in order; none where there is no such folder.

    Names that cannot be told to anyone, with line breaks or not in UTF-8, are left out: nothing
    that a model needs is named so. Raises NotFoundError where the system refuses.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.name.isprintable())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NotFoundError(f"{folder} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> object:
    """Parse a JSON file of at most 8 MiB, in UTF-8 without a byte order mark.

    Raises NotFoundError where it is absent or cannot be read, BadArtifactError where it is
    damaged.
    """
    size = file_size(path)
    if size is None:
        raise NotFoundError(f"{path} is missing; fetch the file")
    if size > MAX_DESCRIPTION_BYTES:
        raise BadArtifactError(
            f"{path} has {size} bytes; a description has at most {MAX_DESCRIPTION_BYTES}"
        )
    try:
        return parse_json(path.read_bytes().decode())
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadArtifactError(f"{path} is damaged JSON: {error}; fetch the file again") from error


def read_description(path: Path) -> Description | None:
    """Read a JSON object; None where there is no such file."""
    if file_size(path) is None:
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadArtifactError(f"{path} does not hold a JSON object; fetch the file again")
    return Description(path, MappingProxyType(value))
