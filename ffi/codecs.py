"""C structs to plain Python values, and each result to one C block.

Both directions go by field name: an options dataclass is filled from the struct of the
same fields, and a result struct from the dataclass of the same fields, so that a new field
needs no code here.
"""

import ctypes
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from libsemantic.engine.config import MAX_ROWS, LoadOptions, RunOptions, RuntimeOptions
from libsemantic.engine.errors import InvalidArgumentError, OutOfMemoryError

# cffi ships no types: its values are opaque here and never leave this package.
FFI = Any
Lib = Any
CData = Any

Options = TypeVar("Options", bound=RuntimeOptions | LoadOptions | RunOptions)

MAX_STRUCT_SIZE = 1 << 16

# The sizes of the option structs when they were first published; they never change.
FIRST_SIZES = {
    "semantic_init_options": 56,
    "semantic_load_options": 104,
    "semantic_run_options": 64,
}

_NUMBERS = {
    "size_t": ("Q", np.uint64),
    "uint64_t": ("Q", np.uint64),
    "int64_t": ("q", np.int64),
    "int32_t": ("i", np.int32),
    "uint8_t": ("B", np.uint8),
    "float": ("f", np.float32),
    "double": ("d", np.float64),
}
_ADDRESS = struct.Struct("Q")


def decode_name(ffi: FFI, pointer: CData, parameter: str) -> str | None:
    """Read a NUL-terminated name or path; None for NULL."""
    if pointer == ffi.NULL:
        return None
    raw: bytes = ffi.string(pointer)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{parameter} is not UTF-8 at byte {error.start}; pass UTF-8"
        ) from None


def decode_texts(ffi: FFI, texts: CData, count: int) -> list[Any]:
    """View the caller's texts without copying them; None stands for {NULL, n > 0}."""
    if count > MAX_ROWS:
        raise InvalidArgumentError(f"{count} rows in one call; pass at most {MAX_ROWS}")
    rows: list[Any] = []
    for index in range(count):
        text = texts[index]
        length = text.length
        if text.data:
            rows.append(ffi.buffer(text.data, length))
        else:
            rows.append(b"" if length == 0 else None)
    return rows


class OptionsCodec(Generic[Options]):
    """Reads one options struct into the dataclass of the same field names."""

    def __init__(self, ffi: FFI, ctype: str, options: type[Options]) -> None:
        self._ffi = ffi
        self._ctype = ctype
        self._pointer = ffi.typeof(f"{ctype} *")
        self._size = ffi.sizeof(ctype)
        self._options = options
        self._defaults = options()
        kinds = {name: field.type.kind for name, field in ffi.typeof(ctype).fields}
        hints = get_type_hints(options)
        self._fields = [
            (field.name, kinds[field.name], _enum_of(hints[field.name]))
            for field in fields(options)
        ]

    def decode(self, pointer: CData) -> Options:
        """Return the options; NULL gives the defaults.

        A shorter struct (an older caller's) leaves its missing fields at their defaults; a
        longer one must hold nothing in the bytes that are not known here.
        """
        ffi = self._ffi
        if pointer == ffi.NULL:
            return self._defaults
        size = pointer.struct_size
        if not FIRST_SIZES[self._ctype] <= size <= MAX_STRUCT_SIZE:
            raise InvalidArgumentError(
                f"{self._ctype}.struct_size is {size}; set it to sizeof({self._ctype}), "
                f"{self._size} in this version"
            )
        known = ffi.new(self._pointer)
        ffi.memmove(known, pointer, min(size, self._size))
        if size > self._size and any(ffi.buffer(pointer, size)[self._size :]):
            raise InvalidArgumentError(
                f"{self._ctype} has options that this library does not know; leave them zero "
                "or use a newer library"
            )
        return self._options(
            **{name: self._value(known, name, kind, enum) for name, kind, enum in self._fields}
        )

    def _value(self, known: CData, name: str, kind: str, enum: type[IntEnum] | None) -> Any:
        value = getattr(known, name)
        if kind == "pointer":
            text = decode_name(self._ffi, value, name)
            return getattr(self._defaults, name) if text is None else text
        if kind == "struct":
            return value.id
        if enum is None:
            return value
        try:
            return enum(value)
        except ValueError:
            allowed = ", ".join(f"{member.value} ({member.name})" for member in enum)
            raise InvalidArgumentError(f"{name} is {value}; it may be {allowed}") from None


def _enum_of(hint: Any) -> type[IntEnum] | None:
    return hint if isinstance(hint, type) and issubclass(hint, IntEnum) else None


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str  # "number", "text", "texts", "array" or "struct"
    offset: int
    number: struct.Struct
    dtype: Any
    nested: "_Layout | None"


@dataclass(frozen=True, slots=True)
class _Layout:
    size: int
    fields: tuple[_Field, ...]


def _layout(ffi: FFI, ctype: CData, filled_later: Collection[str] = ()) -> _Layout:
    return _Layout(
        ffi.sizeof(ctype),
        tuple(_field(ffi, name, field) for name, field in ctype.fields if name not in filled_later),
    )


def _field(ffi: FFI, name: str, field: CData) -> _Field:
    ctype, nested, kind = field.type, None, "number"
    item = ctype.item.cname if ctype.kind == "pointer" else ctype.cname
    if ctype.kind == "struct":
        kind = "text"
    elif ctype.kind == "pointer" and ctype.item == ffi.typeof("semantic_text"):
        kind = "texts"
    elif ctype.kind == "pointer" and ctype.item.kind == "struct":
        kind, nested = "struct", _layout(ffi, ctype.item)
    elif ctype.kind == "pointer":
        kind = "array"
    code, dtype = _NUMBERS.get(item, ("Q", None))
    return _Field(name, kind, field.offset, struct.Struct(code), dtype, nested)


class _Block:
    """Parts of a result with their offsets, before the address of the block is known."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[tuple[int, Any]] = []
        self.pointers: list[tuple[bytearray, int, int]] = []
        self.text_tables: list[tuple[NDArray[np.uint64], int]] = []

    def add(self, data: Any, length: int) -> int:
        offset = self.size
        self.parts.append((offset, data))
        self.size = (offset + length + 7) & ~7
        return offset

    def add_struct(self, value: object, layout: _Layout) -> int:
        body = bytearray(layout.size)
        start = self.add(body, layout.size)
        for field in layout.fields:
            if field.name == "struct_size":
                field.number.pack_into(body, field.offset, layout.size)
                continue
            content = getattr(value, field.name)
            if field.kind == "number":
                field.number.pack_into(body, field.offset, content)
            elif field.kind == "array":
                if content is not None and content.size:
                    array = np.ascontiguousarray(content, field.dtype)
                    offset = self.add(array.reshape(-1).view(np.uint8).data, array.nbytes)
                    self.pointers.append((body, field.offset, offset))
            elif field.kind == "text":
                data = content.encode()
                offset = self.add(data + b"\0", len(data) + 1)
                self.pointers.append((body, field.offset, offset))
                _ADDRESS.pack_into(body, field.offset + _ADDRESS.size, len(data))
            elif field.kind == "texts":
                if content:
                    self.pointers.append((body, field.offset, self._add_texts(content)))
            elif field.nested is not None:
                self.pointers.append((body, field.offset, self.add_struct(content, field.nested)))
        return start

    def _add_texts(self, texts: tuple[str, ...]) -> int:
        encoded = [text.encode() for text in texts]
        pool = b"\0".join(encoded) + b"\0"
        table = np.empty((len(encoded), 2), np.uint64)
        table[:, 1] = [len(text) for text in encoded]
        table[0, 0] = 0
        np.cumsum(table[:-1, 1] + np.uint64(1), out=table[1:, 0])
        start = self.add(table.reshape(-1).view(np.uint8).data, table.nbytes)
        self.text_tables.append((table, self.add(pool, len(pool))))
        return start

    def write(self, ffi: FFI, base: int) -> None:
        for body, position, target in self.pointers:
            _ADDRESS.pack_into(body, position, base + target)
        for table, pool in self.text_tables:
            table[:, 0] += np.uint64(base + pool)
        memory = ffi.buffer(ffi.cast("char *", base), self.size)
        for offset, data in self.parts:
            memory[offset : offset + len(data)] = data


class ResultCodec:
    """Writes results into C blocks: one allocation each, freed by ``semantic_free``."""

    def __init__(
        self, ffi: FFI, lib: Lib, structs: Mapping[type, str], filled_later: Collection[str]
    ) -> None:
        """Work out the layout of each struct; ``filled_later`` are fields left at zero here."""
        self._ffi = ffi
        self._layouts = {
            python: _layout(ffi, ffi.typeof(ctype), filled_later)
            for python, ctype in structs.items()
        }
        # A call through cffi gives up the interpreter lock and may wait milliseconds to get
        # it back; a PYFUNCTYPE keeps it.
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "boundary_block_alloc")))
        self._allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(address)

    def encode(self, result: object) -> int:
        """Copy a result into a new block and return its address."""
        block = _Block()
        block.add_struct(result, self._layouts[type(result)])
        base = self._allocate(block.size)
        if not base:
            raise OutOfMemoryError(f"no memory for a result of {block.size} bytes; send fewer rows")
        block.write(self._ffi, base)
        return int(base)
