"""What a verb returns, into the C value that the caller gets.

A struct is filled by field name; fields that the C struct lacks are not looked at. All that it
points to lies in one block, counted until it is freed: its first pointer that is not NULL is the
address of the block, which the free functions rely on. ``int`` for a pointer is an address that
is written as it is.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np

from libsemantic.engine.errors import OutOfMemoryError

from ..codecs import FFI, CData, Lib, block_allocator

_CODES = {
    "int": "i",
    "float": "f",
    "_Bool": "?",
    "enum NLILabel": "i",
    "size_t": "Q",
}
_DTYPES = {"int": np.int32, "float": np.float32}


class _Pointer(NamedTuple):
    """A field that points: its place, and "text", "texts", "array" or "structs"."""

    place: int
    kind: str
    dtype: Any = None
    nested: "_Layout | None" = None


class _Layout(NamedTuple):
    """How a struct is written: one ``pack`` of all that ``values`` gets, padding included."""

    pack: struct.Struct
    names: tuple[str, ...]
    values: Callable[[object], tuple[Any, ...]]
    pointers: tuple[_Pointer, ...]

    def columns(self, items: Sequence[object]) -> list[Sequence[Any]]:
        """Return the values of all items by field.

        A named tuple of the fields in place of a list of items holds the columns themselves.
        """
        if getattr(type(items), "_fields", None) == self.names:
            return list(cast("Sequence[Sequence[Any]]", items))
        rows: Iterable[Any] = items
        if getattr(type(items[0]), "_fields", None) != self.names:
            rows = map(self.values, items)
        return list(zip(*rows, strict=True))


def _layout(ffi: FFI, ctype: CData) -> _Layout:
    packing, names, pointers, end = "=", [], [], 0
    for place, (name, declared) in enumerate(ctype.fields):
        kind = declared.type
        code = _CODES[kind.cname] if kind.kind != "pointer" else "Q"
        packing += f"{declared.offset - end}x{code}"
        end = declared.offset + ffi.sizeof(kind)
        names.append(name)
        if kind.kind == "pointer":
            pointers.append(_pointer(ffi, place, kind.item))
    packing += f"{ffi.sizeof(ctype) - end}x"
    return _Layout(struct.Struct(packing), tuple(names), attrgetter(*names), tuple(pointers))


def _pointer(ffi: FFI, place: int, item: CData) -> _Pointer:
    if item.cname == "char":
        return _Pointer(place, "text")
    if item.cname == "char *":
        return _Pointer(place, "texts")
    if item.kind == "struct":
        return _Pointer(place, "structs", nested=_layout(ffi, item))
    return _Pointer(place, "array", _DTYPES[item.cname])


class _Structs(NamedTuple):
    """An array of structs on its way: columns of values, of which some are offsets.

    ``in_block`` and ``in_pool`` are the places of the columns that count from there; None stands
    for NULL in them.
    """

    start: int
    layout: _Layout
    columns: list[Sequence[Any]]
    in_block: list[int]
    in_pool: list[int]


class _Block:
    """A block in the making: arrays, and texts of the struct itself, then all other texts."""

    def __init__(self) -> None:
        self._size = 0
        self._parts: list[tuple[int, bytes]] = []
        self._structs: list[_Structs] = []
        self._tables: list[tuple[int, list[int | None]]] = []
        self._pool = bytearray()
        self._pooled: dict[str | bytes | None, int | None] = {None: None}

    @property
    def size(self) -> int:
        """The bytes of the block."""
        return self._size + len(self._pool)

    def place(self, value: object, layout: _Layout) -> tuple[list[Any], list[int]]:
        """Place all that a struct points to; return its values, and which are offsets."""
        values = list(layout.values(value))
        offsets: list[int] = []
        for pointer in layout.pointers:
            content = values[pointer.place]
            if isinstance(content, int):  # an address
                continue
            if pointer.kind == "text":
                data = None if content is None else _encoded(content)
                offset = None if data is None else self._add(data)
            else:
                offset = self._add_array(content, pointer)
            if offset is not None:
                offsets.append(pointer.place)
            values[pointer.place] = offset or 0
        return values, offsets

    def _reserve(self, length: int) -> int:
        start = self._size
        self._size = (start + length + 7) & ~7
        return start

    def _add(self, data: bytes) -> int | None:
        if not data:
            return None
        start = self._reserve(len(data))
        self._parts.append((start, data))
        return start

    def _add_array(self, content: Any, pointer: _Pointer) -> int | None:
        if content is None or not len(content):
            return None
        if pointer.kind == "array":
            return self._add(np.ascontiguousarray(content, pointer.dtype).tobytes())
        if pointer.nested is not None:
            columns = pointer.nested.columns(content)
            return self._add_structs(columns, pointer.nested) if columns[0] else None
        start = self._reserve(8 * len(content))
        self._tables.append((start, self._pool_texts(content)))
        return start

    def _add_structs(self, columns: list[Sequence[Any]], layout: _Layout) -> int:
        start = self._reserve(layout.pack.size * len(columns[0]))
        in_block, in_pool = [], []
        for pointer in layout.pointers:
            column = columns[pointer.place]
            if pointer.kind == "text":
                columns[pointer.place] = self._pool_texts(column)
                in_pool.append(pointer.place)
            else:
                columns[pointer.place] = [self._add_array(each, pointer) for each in column]
                in_block.append(pointer.place)
        self._structs.append(_Structs(start, layout, columns, in_block, in_pool))
        return start

    def _pool_texts(self, texts: Sequence[str | bytes | None]) -> list[int | None]:
        """Place texts behind all arrays; equal ones are one, but for parts of a caller's text."""
        pooled, pool = self._pooled, self._pool
        if type(texts[0]) is bytes:
            offsets: list[int | None] = []
            parts = cast("Sequence[bytes]", texts)
            joined = b"\0".join(parts)
            if joined.count(0) < len(parts):
                start = len(pool)
                pool += joined
                pool.append(0)
                for part in parts:
                    offsets.append(start)
                    start += len(part) + 1
                return offsets
        for text in texts:
            if text is not None and text not in pooled:
                data = text.encode() if isinstance(text, str) else text
                if b"\0" in data:
                    pooled[text] = None
                else:
                    pooled[text] = len(pool)
                    pool += data
                    pool.append(0)
        return [pooled[text] for text in texts]

    def write(self, memory: Any, base: int) -> None:
        """Write everything to ``memory``, which begins at address ``base``."""
        pool = base + self._size
        for start, layout, columns, in_block, in_pool in self._structs:
            for place in in_block:
                columns[place] = _addresses(columns[place], base)
            for place in in_pool:
                columns[place] = _addresses(columns[place], pool)
            packed = b"".join(starmap(layout.pack.pack, zip(*columns, strict=True)))
            memory[start : start + len(packed)] = packed
        for start, places in self._tables:
            struct.pack_into(f"{len(places)}Q", memory, start, *_addresses(places, pool))
        for start, data in self._parts:
            memory[start : start + len(data)] = data
        if self._pool:
            memory[self._size : self.size] = self._pool


def _addresses(offsets: Sequence[int | None], base: int) -> list[int]:
    return [0 if offset is None else base + offset for offset in offsets]


def _encoded(text: str | bytes) -> bytes | None:
    """Return a text as a C string, None where it has a NUL: it must not end where it does not."""
    data = text.encode() if isinstance(text, str) else text
    return None if b"\0" in data else data + b"\0"


class Memory:
    """Blocks of C memory, counted until they are freed."""

    def __init__(self, ffi: FFI, lib: Lib) -> None:
        self._ffi = ffi
        self._free = lib.semantic_free
        self._allocate = block_allocator(ffi, lib)

    def block(self, size: int) -> tuple[int, Any]:
        """Return the address of a new block and a view of it; raise OutOfMemoryError."""
        base = self._allocate(size)
        if not base:
            raise OutOfMemoryError(f"no memory for a result of {size} bytes; send fewer texts")
        return base, self._ffi.buffer(self._ffi.cast("char *", base), size)

    def free(self, base: int) -> None:
        """Free a block; 0 is none."""
        self._free(self._ffi.cast("void *", base))

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
        self._has_message = "error_message" in dict(ctype.fields)

    def write(self, answer: object, found: CData) -> None:
        """Fill the caller's struct; nothing of it changes where that fails."""
        block = _Block()
        values, offsets = block.place(answer, self._layout)
        base = 0
        try:
            if block.size:
                base, view = self._memory.block(block.size)
                block.write(view, base)
                for place in offsets:
                    values[place] += base
            self._ffi.buffer(found, self._size)[:] = self._layout.pack.pack(*values)
        except BaseException:
            self._memory.free(base)
            raise

    def fail(self, message: str, found: CData) -> None:
        """Give the caller the reason, where the struct has room for it."""
        if self._has_message:
            found.error_message = self._ffi.cast("char *", self._memory.text(message))


class ValueAnswer:
    """Writes a number, a truth value, a string, or a pointer."""

    def __init__(self, ffi: FFI, memory: Memory, ctype: CData) -> None:
        self._ffi = ffi
        self._memory = memory
        self._ctype = ctype

    def write(self, answer: object, found: CData) -> None:
        """Fill the caller's value."""
        if isinstance(answer, str):
            answer = self._memory.text(answer)
        is_pointer = self._ctype.kind == "pointer"
        found[0] = self._ffi.cast(self._ctype, answer) if is_pointer else answer

    def fail(self, message: str, found: CData) -> None:
        """There is no room for a reason."""


Answer = StructAnswer | ValueAnswer


def answer_for(ffi: FFI, memory: Memory, pointer: CData) -> Answer:
    """Return what writes through a pointer of this type."""
    item = pointer.item
    return (StructAnswer if item.kind == "struct" else ValueAnswer)(ffi, memory, item)
