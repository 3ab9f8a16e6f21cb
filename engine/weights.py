"""Weights of a model folder: what lies where in its safetensors files, checked to the byte.

Only headers are read, so that a graph can point ONNX Runtime at the tensors inside the files;
the safetensors package does not tell offsets. Format (huggingface.co/docs/safetensors): 8 bytes
little-endian header length, JSON header, data; offsets in the header count from the data's start
and must cover it without holes. Sharded models add ``model.safetensors.index.json``, whose
``weight_map`` names the file of each tensor.
"""

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .errors import BadArtifactError, NotFoundError, SemanticError, UnsupportedError

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"

# Nothing else runs while it is parsed. The largest known headers take 3 MB.
_MAX_JSON_BYTES: Final = 16 << 20
_MAX_RANK: Final = 64  # as in numpy; keeps the product of a hostile shape short
_MAX_DIMENSION: Final = 2**63 - 1
_MAX_NAME: Final = 1000
_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_PICKLE_SUFFIXES: Final = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_TRAINING_FILES: Final = frozenset(
    {"training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"}
)
_AGAIN: Final = "download it again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor: ``nbytes`` of ``dtype`` at byte ``offset`` of the real file ``path``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of ``model.safetensors`` or of the shards its index names.

    Where both exist the single file wins, as in transformers. ``Tensor.path`` is free of links:
    ONNX Runtime refuses data that a link leads out of its folder, and Hugging Face caches are
    links. Raises ``NotFoundError`` for absent files and ``BadArtifactError`` for damaged,
    unreadable or contradicting ones, and where only pickles lie.
    """
    if _exists(folder / SINGLE_FILE):
        return read_file(folder / SINGLE_FILE)
    if _exists(folder / INDEX_FILE):
        return _read_shards(folder, _read_index(folder / INDEX_FILE))
    pickles = _pickles(folder)
    if pickles:
        raise BadArtifactError(
            f"{folder} holds only pickle weights ({', '.join(pickles[:3])}), which can run code;"
            f" convert to safetensors"
        )
    raise NotFoundError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}")


def read_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one safetensors file after checking that they tile its data.

    Raises as ``read_weights`` does.
    """
    real, size = _real_file(path)
    if size < 8:
        raise BadArtifactError(f"{path} has {size} bytes, too few for safetensors; {_AGAIN}")
    start = _read_start(real, 8)
    if start == b"version ":  # how a Git LFS pointer begins
        raise BadArtifactError(f"{path} is a Git LFS pointer, not the weights; run git lfs pull")
    length = int.from_bytes(start, "little")
    if length > size - 8:
        raise BadArtifactError(
            f"{path} announces a header of {length} bytes, but the file has {size}; {_AGAIN}"
        )
    if length > _MAX_JSON_BYTES:
        raise BadArtifactError(
            f"{path} has a header of {length} bytes, at most {_MAX_JSON_BYTES} are read; {_AGAIN}"
        )
    header = _parse_json(path, _read_start(real, 8 + length)[8:])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadArtifactError(f"{path}: __metadata__ is not a table of texts; {_AGAIN}")
    base = 8 + length
    tensors = {name: _tensor(path, real, base, name, entry) for name, entry in header.items()}
    _check_tiling(path, tensors.values(), base, size)
    return tensors


def load_array(tensor: Tensor) -> NDArray[np.float32]:
    """Read one F32, F16 or BF16 tensor into memory as float32 of its shape.

    Raises ``UnsupportedError`` for other dtypes and ``BadArtifactError`` where the file has
    become shorter or unreadable since ``read_weights``.
    """
    return _load_bytes(tensor, 0, tensor.nbytes).reshape(tensor.shape)


def load_rows(tensor: Tensor, first: int, end: int) -> NDArray[np.float32]:
    """Read the part ``[first:end]`` of a tensor that is not empty, as ``load_array`` does."""
    row = tensor.nbytes // tensor.shape[0]
    values = _load_bytes(tensor, first * row, (end - first) * row)
    return values.reshape(end - first, *tensor.shape[1:])


def _load_bytes(tensor: Tensor, start: int, count: int) -> NDArray[np.float32]:
    if tensor.dtype not in ("F32", "F16", "BF16"):
        raise UnsupportedError(
            f"weight {tensor.name!r} of {tensor.path} is {tensor.dtype}; store it as F32, F16 or"
            f" BF16"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset + start)
            data = file.read(count)
    except OSError as error:
        raise _unreadable(tensor.path, error) from error
    if len(data) != count:
        raise BadArtifactError(f"{tensor.path} became shorter while in use; {_AGAIN}")
    if tensor.dtype == "F32":
        return np.frombuffer(data, "<f4").astype(np.float32)
    if tensor.dtype == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    # A BF16 is the upper half of the F32 of equal value.
    return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _read_index(path: Path) -> dict[str, str]:
    """Return the index's map from tensor name to shard name, both checked to be usable."""
    real, size = _real_file(path)
    if size > _MAX_JSON_BYTES:
        raise BadArtifactError(f"{path} has {size} bytes, more than {_MAX_JSON_BYTES}; {_AGAIN}")
    index = _parse_json(path, _read_start(real, size))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadArtifactError(f'{path} has no table "weight_map"; {_AGAIN}')
    shards: dict[str, str] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or not shard.isprintable():
            raise BadArtifactError(f"{path} gives {name!r} no file name; {_AGAIN}")
        inside = PurePosixPath(shard)
        if inside.is_absolute() or ".." in inside.parts:
            raise BadArtifactError(
                f"{path} points outside its folder: {shard!r}; put the shards beside the index"
            )
        shards[name] = shard
    return shards


def _read_shards(folder: Path, shards: dict[str, str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for shard in sorted(set(shards.values())):
        if not _exists(folder / shard):
            raise NotFoundError(f"{folder} lacks the shard {shard!r} of its index; download it")
        for name, tensor in read_file(folder / shard).items():
            if name in tensors:
                raise BadArtifactError(
                    f"{folder}: weight {name!r} is in {origin[name]!r} and in {shard!r}; {_AGAIN}"
                )
            tensors[name] = tensor
            origin[name] = shard
    for name, shard in shards.items():
        if origin.get(name) != shard:
            raise BadArtifactError(
                f"{folder / shard} lacks weight {name!r}, which {INDEX_FILE} places there; {_AGAIN}"
            )
    unlisted = sorted(tensors.keys() - shards.keys())
    if unlisted:
        raise BadArtifactError(
            f"{folder / origin[unlisted[0]]} holds weight {unlisted[0]!r}, which {INDEX_FILE} does"
            f" not list; {_AGAIN}"
        )
    return tensors


def _tensor(path: Path, real: Path, base: int, name: str, entry: object) -> Tensor:
    """Check one header entry against its own numbers; ``base`` is where the data starts."""
    if not isinstance(entry, dict):
        raise BadArtifactError(f"{path}: entry {name!r} is not a table; {_AGAIN}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise BadArtifactError(f"{path}: {name!r} has the unknown dtype {dtype!r:.40}; {_AGAIN}")
    shape = _integers(entry.get("shape"))
    # numpy counts the bytes of an empty array too, as if its dimensions of 0 were 1.
    sizes = [dimension for dimension in shape or () if dimension]
    if shape is None or len(shape) > _MAX_RANK or 8 * prod(sizes) > _MAX_DIMENSION:
        raise BadArtifactError(f"{path}: {name!r} has no valid shape; {_AGAIN}")
    offsets = _integers(entry.get("data_offsets"))
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadArtifactError(f"{path}: {name!r} has no valid data_offsets; {_AGAIN}")
    bits = _BITS[dtype]
    for dimension in shape:
        bits *= dimension
    nbytes = offsets[1] - offsets[0]
    if bits != 8 * nbytes:
        raise BadArtifactError(
            f"{path}: {name!r} takes {nbytes} bytes, but {dtype} {list(shape)} needs"
            f" {-(-bits // 8)}; {_AGAIN}"
        )
    return Tensor(name, dtype, shape, real, base + offsets[0], nbytes)


def _check_tiling(path: Path, tensors: Iterable[Tensor], base: int, size: int) -> None:
    """Check that the tensors cover ``base`` to ``size`` without hole, overlap or remainder."""
    end = base
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            fault = "overlaps the one before it" if tensor.offset < end else "leaves a hole"
            raise BadArtifactError(f"{path}: weight {tensor.name!r} {fault}; {_AGAIN}")
        end += tensor.nbytes
    if end > size:
        raise BadArtifactError(f"{path} is cut short: {size} of {end} bytes; {_AGAIN}")
    if end < size:
        raise BadArtifactError(f"{path} has {size - end} bytes after its last weight; {_AGAIN}")


def _integers(value: object) -> tuple[int, ...] | None:
    """Return a JSON array of integers of 0 … 2**63 - 1 as a tuple; None for anything else."""
    if not isinstance(value, list):
        return None
    numbers = [n for n in value if type(n) is int and 0 <= n <= _MAX_DIMENSION]
    return tuple(numbers) if len(numbers) == len(value) else None


def _parse_json(path: Path, data: bytes) -> dict[str, object]:
    """Parse a JSON object, refusing repeated keys and names that are not Unicode text."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadArtifactError(f"{path}: its JSON is damaged ({error}); {_AGAIN}") from error
    if not isinstance(value, dict):
        raise BadArtifactError(f"{path}: its JSON is no object; {_AGAIN}")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        key.encode()  # a lone surrogate is a ValueError here rather than a crash later
        if len(key) > _MAX_NAME:
            raise ValueError(f"a name has {len(key)} characters")
        if key in table:
            raise ValueError(f"key {key!r} occurs twice")
        table[key] = value
    return table


def _exists(path: Path) -> bool:
    """Say whether a file or link lies there, even a broken link, which is then reported."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the name
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _real_file(path: Path) -> tuple[Path, int]:
    """Return the regular file that ``path`` leads to, free of links, and its size in bytes."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        status = real.stat()
        str(real).encode()
    except UnicodeEncodeError as error:
        raise BadArtifactError(f"{path} leads to a file name outside UTF-8; rename it") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise BadArtifactError(f"{path} is not a regular file; {_AGAIN}")
    return real, status.st_size


def _read_start(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) != count:
        raise BadArtifactError(f"{path} ends before byte {count}; {_AGAIN}")
    return data


def _pickles(folder: Path) -> list[str]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names are wanted, not paths)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{folder} cannot be listed ({error}); check the path") from error
    return [n for n in names if Path(n).suffix in _PICKLE_SUFFIXES and n not in _TRAINING_FILES]


def _unreadable(path: Path, error: OSError) -> SemanticError:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{path} leads to no file (a broken link?); download it")
    return BadArtifactError(
        f"{path} cannot be read ({error.strerror}); check the file and its permissions"
    )
