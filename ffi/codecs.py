"""C structs to plain Python values, and each result to one C block.

Both directions go by field name: an options dataclass is filled from the struct of the
same fields, and a result struct from the dataclass of the same fields, so that a new field
needs no code here.
"""

import ctypes
import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np

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
            try:
                rows.append(ffi.buffer(text.data, length))
            except OverflowError:  # no such memory: its row fails by its length, unread
                rows.append(ffi.buffer(text.data, sys.maxsize))
        else:
            rows.append(b"" if length == 0 else None)
    return rows


class OptionsCodec(Generic[Options]):
    """Reads one options struct into the dataclass of the same field names."""

    def __init__(self, ffi: FFI, ctype: str, defaults: Options) -> None:
        """Read ``ctype``; NULL stands for ``defaults``."""
        self._ffi = ffi
        self._ctype = ctype
        self._pointer = ffi.typeof(f"{ctype} *")
        self._size = ffi.sizeof(ctype)
        self._options = type(defaults)
        self._defaults = defaults
        kinds = {name: field.type.kind for name, field in ffi.typeof(ctype).fields}
        hints = get_type_hints(self._options)
        self._fields = [
            (field.name, kinds[field.name], _enum_of(hints[field.name]))
            for field in fields(defaults)
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


class _Field(NamedTuple):
    """How one field is written.

    ``kind``: "size" (struct_size), "later" (left at zero), "number", "text", "texts", "array"
    or "struct". ``code`` and ``dtype`` are those of an array's items, ``nested`` the layout of
    the struct that the field points to.
    """

    name: str
    kind: str
    code: str = ""
    dtype: Any = None
    nested: "_Layout | None" = None


class _Layout(NamedTuple):
    """How a result struct is written: one ``pack`` of all its fields, padding included."""

    pack: struct.Struct
    fields: tuple[_Field, ...]


def _layout(ffi: FFI, ctype: CData, filled_later: Collection[str] = ()) -> _Layout:
    packing, fields, end = "=", [], 0
    for name, declared in ctype.fields:
        field = _field(ffi, name, declared.type, filled_later)
        code = {"text": "QQ", "number": field.code}.get(field.kind, "Q")
        packing += f"{declared.offset - end}x{code}"
        end = declared.offset + ffi.sizeof(declared.type)
        fields.append(field)
    packing += f"{ffi.sizeof(ctype) - end}x"
    return _Layout(struct.Struct(packing), tuple(fields))


def _field(ffi: FFI, name: str, ctype: CData, filled_later: Collection[str]) -> _Field:
    if name == "struct_size":
        return _Field(name, "size")
    if name in filled_later:
        return _Field(name, "later")
    if ctype.kind == "struct":
        return _Field(name, "text")
    if ctype.kind != "pointer":
        return _Field(name, "number", _NUMBERS[ctype.cname][0])
    if ctype.item == ffi.typeof("semantic_text"):
        return _Field(name, "texts")
    if ctype.item.kind == "struct":
        return _Field(name, "struct", nested=_layout(ffi, ctype.item))
    return _Field(name, "array", *_NUMBERS[ctype.item.cname])


class _Block:
    """A result on its way into C: parts with their offsets, then addresses, then the bytes."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[tuple[int, Any]] = []
        self.structs: list[tuple[int, _Layout, list[Any], list[int]]] = []
        self.text_tables: list[tuple[int, list[int], int]] = []

    def _reserve(self, length: int) -> int:
        start = self.size
        self.size = (start + length + 7) & ~7
        return start

    def _add(self, data: Any, length: int) -> int:
        start = self._reserve(length)
        self.parts.append((start, data))
        return start

    def add_struct(self, value: object, layout: _Layout) -> int:
        """Place a struct and all it points to; return its offset."""
        start = self._reserve(layout.pack.size)
        values: list[Any] = []
        pointers: list[int] = []  # positions in values that hold offsets so far
        for name, kind, code, dtype, nested in layout.fields:
            if kind == "size":
                values.append(layout.pack.size)
                continue
            if kind == "later":
                values.append(0)
                continue
            content = getattr(value, name)
            if kind == "number":
                values.append(content)
                continue
            if content is None or (kind in ("array", "texts") and not len(content)):
                values.append(0)  # NULL
                continue
            pointers.append(len(values))
            if kind == "array":
                values.append(self._add_array(content, code, dtype))
            elif kind == "texts":
                values.append(self._add_texts(content))
            elif kind == "text":
                data = content.encode()
                values += self._add(data + b"\0", len(data) + 1), len(data)
            elif nested is not None:
                values.append(self.add_struct(content, nested))
        self.structs.append((start, layout, values, pointers))
        return start

    def _add_array(self, content: Any, code: str, dtype: Any) -> int:
        if isinstance(content, tuple):
            packed = struct.pack(f"{len(content)}{code}", *content)
            return self._add(packed, len(packed))
        if content.dtype != dtype or not content.flags.c_contiguous:
            content = np.ascontiguousarray(content, dtype)
        data = content.data.cast("B")
        return self._add(data, len(data))

    def _add_texts(self, texts: Sequence[str]) -> int:
        encoded = [text.encode() for text in texts]
        pool = b"\0".join(encoded) + b"\0"
        lengths = list(map(len, encoded))
        table = self._reserve(16 * len(lengths))
        self.text_tables.append((table, lengths, self._add(pool, len(pool))))
        return table

    def write(self, memory: Any, base: int) -> None:
        """Write everything to ``memory``, which begins at address ``base``."""
        for start, layout, values, pointers in self.structs:
            for position in pointers:
                values[position] += base
            layout.pack.pack_into(memory, start, *values)
        for start, lengths, pool in self.text_tables:
            address = base + pool
            entries: list[int] = []
            for length in lengths:
                entries += address, length
                address += length + 1
            struct.pack_into(f"{len(entries)}Q", memory, start, *entries)
        for start, data in self.parts:
            memory[start : start + len(data)] = data


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

    def encode(self, result: object) -> CData:
        """Copy a result into a new block and return its ``void *``."""
        block = _Block()
        block.add_struct(result, self._layouts[type(result)])
        base = self._allocate(block.size)
        if not base:
            raise OutOfMemoryError(f"no memory for a result of {block.size} bytes; send fewer rows")
        pointer = self._ffi.cast("char *", base)
        block.write(self._ffi.buffer(pointer, block.size), base)
        return pointer
