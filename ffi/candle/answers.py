"""What a verb returns, into the C value that the caller gets.

A struct is filled by field name; fields that the C struct lacks are not looked at. All that it
points to lies in one block, counted until it is freed: its first pointer that is not NULL is the
address of the block, which the free functions rely on. ``int`` for a pointer is an address that
is written as it is.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from libsemantic.engine.errors import OutOfMemoryError

from ..codecs import FFI, CData, Lib

_CODES = {
    "int": "i",
    "float": "f",
    "_Bool": "?",
    "enum NLILabel": "i",
    "size_t": "Q",
}
_DTYPES = {"int": np.int32, "float": np.float32}


class _Field(NamedTuple):
    """How one field is written: "number", "text", "texts", "array" or "structs"."""

    name: str
    kind: str
    dtype: Any = None
    nested: "_Layout | None" = None


class _Layout(NamedTuple):
    """How a struct is written: one ``pack`` of all its fields, padding included."""

    pack: struct.Struct
    fields: tuple[_Field, ...]


def _layout(ffi: FFI, ctype: CData) -> _Layout:
    packing, fields, end = "=", [], 0
    for name, declared in ctype.fields:
        kind = declared.type
        code = _CODES[kind.cname] if kind.kind != "pointer" else "Q"
        packing += f"{declared.offset - end}x{code}"
        end = declared.offset + ffi.sizeof(kind)
        fields.append(_field(ffi, name, kind))
    packing += f"{ffi.sizeof(ctype) - end}x"
    return _Layout(struct.Struct(packing), tuple(fields))


def _field(ffi: FFI, name: str, kind: CData) -> _Field:
    if kind.kind != "pointer":
        return _Field(name, "number")
    item = kind.item
    if item.cname == "char":
        return _Field(name, "text")
    if item.cname == "char *":
        return _Field(name, "texts")
    if item.kind == "struct":
        return _Field(name, "structs", nested=_layout(ffi, item))
    return _Field(name, "array", _DTYPES[item.cname])


class _Block:
    """A block in the making: parts with their offsets, then addresses, then the bytes."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[tuple[int, Any]] = []
        self.structs: list[tuple[int, _Layout, list[Any], list[int]]] = []
        self.tables: list[tuple[int, list[int | None]]] = []

    def values(self, value: object, layout: _Layout) -> tuple[list[Any], list[int]]:
        """Place all that a struct points to; return its values, and which are offsets so far."""
        values: list[Any] = []
        pointers: list[int] = []
        for name, kind, dtype, nested in layout.fields:
            content = getattr(value, name)
            if kind == "number":
                values.append(content)
                continue
            if isinstance(content, int):
                values.append(content)
                continue
            place = None
            if content is None:
                pass
            elif kind == "text":
                place = self._add_text(content)
            elif kind == "array":
                data = np.ascontiguousarray(content, dtype).tobytes()
                place = self._add(data) if data else None
            elif kind == "texts":
                place = self._add_texts(content)
            elif nested is not None:
                place = self._add_structs(content, nested)
            if place is not None:
                pointers.append(len(values))
            values.append(place or 0)
        return values, pointers

    def _reserve(self, length: int) -> int:
        start = self.size
        self.size = (start + length + 7) & ~7
        return start

    def _add(self, data: bytes) -> int:
        start = self._reserve(len(data))
        self.parts.append((start, data))
        return start

    def _add_text(self, text: str | bytes) -> int | None:
        data = text.encode() if isinstance(text, str) else text
        # A C string cannot hold a NUL, and must not end where it is none.
        return None if b"\0" in data else self._add(data + b"\0")

    def _add_texts(self, texts: Sequence[str]) -> int | None:
        if not texts:
            return None
        table = self._reserve(8 * len(texts))
        self.tables.append((table, [self._add_text(text) for text in texts]))
        return table

    def _add_structs(self, items: Sequence[object], layout: _Layout) -> int | None:
        if not items:
            return None
        start = self._reserve(layout.pack.size * len(items))
        for number, item in enumerate(items):
            values, pointers = self.values(item, layout)
            self.structs.append((start + number * layout.pack.size, layout, values, pointers))
        return start

    def write(self, memory: Any, base: int) -> None:
        """Write everything to ``memory``, which begins at address ``base``."""
        for start, layout, values, pointers in self.structs:
            for position in pointers:
                values[position] += base
            layout.pack.pack_into(memory, start, *values)
        for start, places in self.tables:
            addresses = [0 if place is None else base + place for place in places]
            struct.pack_into(f"{len(addresses)}Q", memory, start, *addresses)
        for start, data in self.parts:
            memory[start : start + len(data)] = data


class Memory:
    """Blocks of C memory, counted until they are freed."""

    def __init__(self, ffi: FFI, lib: Lib) -> None:
        self._ffi = ffi
        # A call through cffi gives up the interpreter lock; a PYFUNCTYPE keeps it.
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "boundary_block_alloc")))
        self._allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(address)

    def block(self, size: int) -> tuple[int, Any]:
        """Return the address of a new block and a view of it; raise OutOfMemoryError."""
        base = self._allocate(size)
        if not base:
            raise OutOfMemoryError(f"no memory for a result of {size} bytes; send fewer texts")
        return base, self._ffi.buffer(self._ffi.cast("char *", base), size)

    def text(self, text: str) -> int:
        """Return the address of a new C string."""
        data = text.encode().replace(b"\0", b" ") + b"\0"
        base, view = self.block(len(data))
        view[:] = data
        return base


class Interned:
    """C strings for the life of the process, one for each text; freeing them does nothing.

    They are for labels, of which a process has few and which callers do not free.
    """

    def __init__(self, ffi: FFI) -> None:
        self._ffi = ffi
        self._held: dict[str, tuple[CData, int]] = {}

    def address(self, text: str) -> int:
        """Return the address of the text's C string."""
        held = self._held.get(text)
        if held is None:
            # Zeros before it: semantic_free looks there for the mark of a block.
            data = bytes(_BLOCK_HEADER) + text.encode().replace(b"\0", b" ")
            memory = self._ffi.new("char[]", data)
            address = int(self._ffi.cast("uintptr_t", memory)) + _BLOCK_HEADER
            held = self._held.setdefault(text, (memory, address))
        return held[1]


_BLOCK_HEADER = 64  # more than the header of a block in ffi/memory.c


class StructAnswer:
    """Writes answers of one struct type."""

    def __init__(self, ffi: FFI, memory: Memory, ctype: CData) -> None:
        self._ffi = ffi
        self._memory = memory
        self._layout = _layout(ffi, ctype)
        self._size = ffi.sizeof(ctype)
        self._has_message = any(field.name == "error_message" for field in self._layout.fields)

    def write(self, answer: object, found: CData) -> None:
        """Fill the caller's struct; nothing of it changes where that fails."""
        block = _Block()
        values, pointers = block.values(answer, self._layout)
        if block.size:
            base, view = self._memory.block(block.size)
            block.write(view, base)
            for position in pointers:
                values[position] += base
        self._layout.pack.pack_into(self._ffi.buffer(found, self._size), 0, *values)

    def fail(self, message: str, found: CData) -> None:
        """Give the caller the reason, where the struct has room for it."""
        if self._has_message:
            found.error_message = self._ffi.cast("char *", self._memory.text(message))


class ValueAnswer:
    """Writes a number, a truth value, a string, or a pointer."""

    def __init__(self, ffi: FFI, memory: Memory, ctype: CData) -> None:
        self._ffi = ffi
        self._memory = memory
        self._is_text = ctype.cname == "char *"

    def write(self, answer: object, found: CData) -> None:
        """Fill the caller's value."""
        if self._is_text and isinstance(answer, str):
            found[0] = self._ffi.cast("char *", self._memory.text(answer))
        else:
            found[0] = answer

    def fail(self, message: str, found: CData) -> None:
        """There is no room for a reason."""


Answer = StructAnswer | ValueAnswer


def answer_for(ffi: FFI, memory: Memory, pointer: CData) -> Answer:
    """Return what writes through a pointer of this type."""
    item = pointer.item
    return (StructAnswer if item.kind == "struct" else ValueAnswer)(ffi, memory, item)
