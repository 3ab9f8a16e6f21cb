"""C structs to plain Python values, and each result to one C block.

Both directions go by field name: an options dataclass is filled from the struct of the
same fields, and a result struct from the dataclass of the same fields, so that a new field
needs no code here.
"""

import ctypes
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
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

# The sizes of the structs that callers fill when they were first published; they never change.
FIRST_SIZES = {
    "semantic_init_options": 56,
    "semantic_load_options": 104,
    "semantic_run_options": 64,
    "semantic_request": 24,
}

_NUMBERS = {
    "size_t": ("Q", np.dtype(np.uint64)),
    "uint64_t": ("Q", np.dtype(np.uint64)),
    "int64_t": ("q", np.dtype(np.int64)),
    "int32_t": ("i", np.dtype(np.int32)),
    "uint8_t": ("B", np.dtype(np.uint8)),
    "float": ("f", np.dtype(np.float32)),
    "double": ("d", np.dtype(np.float64)),
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


def decode_array(ffi: FFI, ctype: str, pointer: CData, count: int, limit: int) -> list[CData]:
    """Copy an array of structs that begin with struct_size, which says how far apart they lie.

    Raise InvalidArgumentError for more than ``limit``, or sizes that are wrong or unequal.
    """
    if count > limit:
        raise InvalidArgumentError(f"{count} of {ctype} in one call; pass at most {limit}")
    if not count:
        return []
    kind, known, size = ffi.typeof(f"{ctype} *"), ffi.sizeof(ctype), pointer.struct_size
    if not FIRST_SIZES[ctype] <= size <= MAX_STRUCT_SIZE or size % ffi.alignof(ctype):
        raise InvalidArgumentError(
            f"{ctype}.struct_size is {size}; set it to sizeof({ctype}), {known} in this version"
        )
    start = ffi.cast("char *", pointer)
    items = []
    for index in range(count):
        given = ffi.cast(kind, start + size * index)
        if given.struct_size != size:
            raise InvalidArgumentError(
                f"{ctype}.struct_size is {size} in the first and {given.struct_size} in number "
                f"{index}; set it to sizeof({ctype}) in all"
            )
        if any(ffi.buffer(given, size)[known:]):
            raise InvalidArgumentError(
                f"{ctype} has fields that this library does not know; leave them zero or use a "
                "newer library"
            )
        items.append(ffi.new(kind))
        ffi.memmove(items[-1], given, min(size, known))
    return items


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

    ``kind``: "number", "text", "texts", "results" or "array". ``code`` and ``dtype`` are those of
    an array's items. ``position``: among the values of the layout; a text has two, pointer and
    length.
    """

    position: int
    kind: str
    code: str
    dtype: Any


class _Layout(NamedTuple):
    """How a result is written: its struct, those it points to, and then what is of any length.

    ``pack`` writes all structs at once, padding included, from ``values``, of which ``pointers``
    are the positions of those that hold offsets in the block. ``read`` gets the contents of
    ``fields`` from a result.
    """

    pack: struct.Struct
    values: tuple[int, ...]
    pointers: tuple[int, ...]
    fields: tuple[_Field, ...]
    read: Callable[[object], tuple[Any, ...]]


class _Block(NamedTuple):
    """A result, arranged: ``size`` bytes, in which all positions are counted from the start.

    ``values`` belong to the layout, ``pointers`` are the positions of those that point into the
    block. ``parts``: (start, end, data). ``texts``: (table, start of the texts, their sizes).
    ``results``: (table, for each entry where its block begins and the block, or None).
    """

    size: int
    pack: struct.Struct
    values: list[Any]
    pointers: list[int]
    parts: list[tuple[int, int, Any]]
    texts: list[tuple[int, int, list[int]]]
    results: list[tuple[int, list["tuple[int, _Block] | None"]]]


class _LayoutBuilder:
    """Works out the layout of one result struct."""

    def __init__(self, ffi: FFI, ctype: CData, filled_later: Collection[str]) -> None:
        self._ffi = ffi
        self._later = filled_later
        self._packing = "="
        self._end = 0
        self._values: list[int] = []
        self._pointers: list[int] = []
        self._fields: list[_Field] = []
        self._names: list[str] = []
        pending: list[tuple[CData, str, int | None]] = [(ctype, "", None)]
        for each in pending:
            pending += self._add(*each)

    def layout(self) -> _Layout:
        """Return it."""
        read = attrgetter(*self._names)
        pack = struct.Struct(self._packing)
        return _Layout(pack, tuple(self._values), tuple(self._pointers), tuple(self._fields), read)

    def _add(
        self, ctype: CData, owner: str, pointer: int | None
    ) -> list[tuple[CData, str, int | None]]:
        """Add a struct, to which the value at ``pointer`` points; return those it points to."""
        start = self._end
        nested: list[tuple[CData, str, int | None]] = []
        if pointer is not None:
            self._values[pointer] = start
            self._pointers.append(pointer)
        for name, declared in ctype.fields:
            of, position = declared.type, len(self._values)
            self._packing += f"{start + declared.offset - self._end}x"
            self._end = start + declared.offset + self._ffi.sizeof(of)
            kind, code, dtype = self._kind(name, of)
            self._packing += {"text": "QQ", "number": code}.get(kind, "Q")
            self._values += (0, 0) if kind == "text" else (0,)
            if kind == "size":
                self._values[position] = self._ffi.sizeof(ctype)
            elif kind == "struct":
                nested.append((of.item, f"{owner}{name}.", position))
            elif kind != "later":
                self._fields.append(_Field(position, kind, code, dtype))
                self._names.append(owner + name)
        size = self._ffi.sizeof(ctype) + 7 & ~7
        self._packing += f"{start + size - self._end}x"
        self._end = start + size
        return nested

    def _kind(self, name: str, ctype: CData) -> tuple[str, str, Any]:
        if name == "struct_size":
            return "size", "", None
        if name in self._later:
            return "later", "", None
        if ctype.kind == "struct":
            return "text", "", None
        if ctype.kind != "pointer":
            return "number", *_NUMBERS[ctype.cname]
        if ctype.item == self._ffi.typeof("semantic_text"):
            return "texts", "", None
        if ctype.item.kind == "pointer":
            return "results", "", None
        if ctype.item.kind == "struct":
            return "struct", "", None
        return "array", *_NUMBERS[ctype.item.cname]


def block_allocator(ffi: FFI, lib: Lib) -> Callable[[int], int | None]:
    """Return what makes a zeroed block of so many bytes: its address, None where memory is refused.

    A call through cffi gives up the interpreter lock and may wait milliseconds to get it back; a
    PYFUNCTYPE keeps it.
    """
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "boundary_block_alloc")))
    return ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(address)


class ResultCodec:
    """Writes results into C blocks: one allocation each, freed by ``semantic_free``."""

    def __init__(
        self, ffi: FFI, lib: Lib, structs: Mapping[type, str], filled_later: Collection[str]
    ) -> None:
        """Work out the layout of each struct; ``filled_later`` are fields left at zero here."""
        self._ffi = ffi
        self._layouts = {
            python: _LayoutBuilder(ffi, ffi.typeof(ctype), filled_later).layout()
            for python, ctype in structs.items()
        }
        self._allocate = block_allocator(ffi, lib)

    def encode(self, result: object) -> CData:
        """Copy a result into a new block and return its ``void *``.

        One pass finds out where everything goes, a second one writes it.
        """
        block = self._arrange(result)
        base = self._allocate(block.size)
        if not base:
            raise OutOfMemoryError(f"no memory for a result of {block.size} bytes; send fewer rows")
        pointer = self._ffi.cast("char *", base)
        _write(block, self._ffi.buffer(pointer, block.size), base, 0)
        return pointer

    def _arrange(self, result: object) -> _Block:
        layout = self._layouts[type(result)]
        values, pointers = list(layout.values), list(layout.pointers)
        parts: list[tuple[int, int, Any]] = []
        texts: list[tuple[int, int, list[int]]] = []
        results: list[tuple[int, list[tuple[int, _Block] | None]]] = []
        end = layout.pack.size
        for (position, kind, code, dtype), content in zip(
            layout.fields, layout.read(result), strict=True
        ):
            if kind == "number":
                values[position] = content
                continue
            if content is None or (kind != "text" and not len(content)):
                continue  # NULL
            pointers.append(position)
            values[position] = end
            if kind == "results":
                entries: list[tuple[int, _Block] | None] = []
                table, end = end, end + 8 * len(content)
                for each in content:
                    block = None if each is None else self._arrange(each)
                    entries.append(block and (end, block))
                    end += block.size if block else 0
                results.append((table, entries))
                continue
            if kind == "array":
                data, size = _as_buffer(content, code, dtype)
            elif kind == "text":
                data = content.encode() + b"\0"
                size = len(data)
                values[position + 1] = size - 1
            else:
                encoded = [text.encode() for text in content]
                data = b"\0".join(encoded) + b"\0"
                size = len(data)
                table, end = end, end + 16 * len(encoded)
                texts.append((table, end, list(map(len, encoded))))
            parts.append((end, end + size, data))
            end += size + 7 & ~7
        return _Block(end, layout.pack, values, pointers, parts, texts, results)


def _write(block: _Block, memory: CData, address: int, at: int) -> None:
    """Write a result ``at`` so many bytes into the memory of a block, there at ``address``."""
    values = block.values
    for position in block.pointers:
        values[position] += address
    block.pack.pack_into(memory, at, *values)
    for table, start, lengths in block.texts:
        text = address + start
        entries: list[int] = []
        for length in lengths:
            entries += text, length
            text += length + 1
        struct.pack_into(f"{len(entries)}Q", memory, at + table, *entries)
    for start, stop, data in block.parts:
        memory[at + start : at + stop] = data
    for table, found in block.results:
        places = [0 if each is None else address + each[0] for each in found]
        struct.pack_into(f"{len(places)}Q", memory, at + table, *places)
        for each in found:
            if each is not None:
                _write(each[1], memory, address + each[0], at + each[0])


def _as_buffer(content: Any, code: str, dtype: Any) -> tuple[Any, int]:
    """Return the memory of a column, and how many bytes it has; a tuple's is new."""
    if isinstance(content, tuple):
        packed = struct.pack(f"{len(content)}{code}", *content)
        return packed, len(packed)
    if content.dtype is not dtype or not content.flags.c_contiguous:
        content = np.ascontiguousarray(content, dtype)
    return content, content.nbytes
