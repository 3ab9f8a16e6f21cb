"""C structs to plain Python values, and each result to one C block.

Both directions go by field name: an options dataclass is filled from the struct of the
same fields, and a result struct from the dataclass of the same fields, so that a new field
needs no code here.
"""

import ctypes
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, get_origin, get_type_hints

import numpy as np

from libsemantic.engine.config import MAX_ROWS, LoadOptions, RunOptions, RuntimeOptions
from libsemantic.engine.errors import InvalidArgumentError, OutOfMemoryError

# cffi ships no types: its values are opaque here and never leave this package.
FFI = Any
Lib = Any
CData = Any

Options = TypeVar("Options", bound=RuntimeOptions | LoadOptions | RunOptions)

MAX_STRUCT_SIZE = 1 << 16
_MAX_KEPT, _MAX_KEPT_VALUES = 256, 256  # plans of result blocks, and values of one
_FEW_TEXTS = 64
_NOTHING = np.empty(0, np.uint8)

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
    """Reads one options struct into the dataclass of the same field names.

    What is 0 is the default and not looked at any further: most calls set one option or none.
    """

    def __init__(self, ffi: FFI, ctype: str, defaults: Options) -> None:
        """Read ``ctype``; NULL stands for ``defaults``."""
        self._ffi = ffi
        self._ctype = ctype
        self._options = type(defaults)
        self._defaults = defaults
        names = {field.name for field in fields(defaults)}
        packing, end = "=", 0
        self._fields: list[tuple[str, bool]] = []  # and whether it points to a text
        for name, field in ffi.typeof(ctype).fields:
            if name in names:
                # A pointer is its address, and a handle its number.
                code = _NUMBERS[field.type.cname][0] if field.type.kind == "primitive" else "Q"
                packing += f"{field.offset - end}x{code}"
                end = field.offset + struct.calcsize(code)
                self._fields.append((name, field.type.kind == "pointer"))
        self._struct = struct.Struct(f"{packing}{ffi.sizeof(ctype) - end}x")

    def decode(self, pointer: CData) -> Options:
        """Return the options; NULL gives the defaults.

        A shorter struct (an older caller's) leaves its missing fields at their defaults; a
        longer one must hold nothing in the bytes that are not known here.
        """
        ffi = self._ffi
        if pointer == ffi.NULL:
            return self._defaults
        size, known = pointer.struct_size, self._struct.size
        if not FIRST_SIZES[self._ctype] <= size <= MAX_STRUCT_SIZE:
            raise InvalidArgumentError(
                f"{self._ctype}.struct_size is {size}; set it to sizeof({self._ctype}), "
                f"{known} in this version"
            )
        data = bytes(ffi.buffer(pointer, size))
        if size > known and any(data[known:]):
            raise InvalidArgumentError(
                f"{self._ctype} has options that this library does not know; leave them zero "
                "or use a newer library"
            )
        values = self._struct.unpack_from(data if size >= known else data.ljust(known, b"\0"))
        if not any(values):
            return self._defaults
        given: dict[str, Any] = {
            name: self._read_text(value, name) if is_text else value
            for (name, is_text), value in zip(self._fields, values, strict=True)
            if value
        }
        return self._options(**given)

    def _read_text(self, address: int, name: str) -> str | None:
        return decode_name(self._ffi, self._ffi.cast("char *", address), name)


class _Reader:
    """Reads fields of a result that go to certain ``positions`` among the values of its layout."""

    def __init__(self, fields: Sequence[tuple[str, int]]) -> None:
        self.positions = tuple(position for _, position in fields)
        names = [name for name, _ in fields]
        if len(names) > 1:
            self.read: Callable[[object], tuple[Any, ...]] = attrgetter(*names)
        elif names:
            only = attrgetter(names[0])
            self.read = lambda result: (only(result),)
        else:
            self.read = lambda _: ()


class _Layout(NamedTuple):
    """How a result is written: its struct, those it points to, and then what is of any length.

    ``packing`` is the format of all structs, padding included. Their ``values`` lie at ``offsets``
    in the block; those at ``pointers`` are offsets in it. The other values come from the result:
    ``numbers``; ``columns``, tuples of numbers, by ``codes``; ``arrays`` by ``dtypes``; and
    ``texts``, single ones and tuples of them. Columns of the indices ``results`` hold results of
    their own, or None.
    """

    packing: str
    values: tuple[int, ...]
    offsets: tuple[int, ...]
    pointers: tuple[int, ...]
    numbers: _Reader
    columns: _Reader
    codes: tuple[str, ...]
    results: tuple[int, ...]
    arrays: _Reader
    dtypes: tuple[Any, ...]
    texts: _Reader


class _Struct(NamedTuple):
    """A struct to lay out: its type in C and in Python, its owner's name, what points to it."""

    ctype: CData
    python: type
    owner: str
    pointer: int | None


class _LayoutBuilder:
    """Works out the layout of one result struct."""

    def __init__(self, ffi: FFI, ctype: CData, python: type, filled_later: Collection[str]) -> None:
        self._ffi = ffi
        self._text = ffi.typeof("semantic_text")
        self._later = filled_later
        self._packing = "="
        self._end = 0
        self._values: list[int] = []
        self._offsets: list[int] = []
        self._pointers: list[int] = []
        self._numbers: list[tuple[str, int]] = []
        self._columns: list[tuple[str, int]] = []
        self._codes: list[str] = []
        self._results: list[int] = []
        self._arrays: list[tuple[str, int]] = []
        self._dtypes: list[Any] = []
        self._texts: list[tuple[str, int]] = []
        pending = [_Struct(ctype, python, "", None)]
        for each in pending:
            pending += self._add(each)

    def layout(self) -> _Layout:
        """Return it."""
        return _Layout(
            packing=self._packing,
            values=tuple(self._values),
            offsets=tuple(self._offsets),
            pointers=tuple(self._pointers),
            numbers=_Reader(self._numbers),
            columns=_Reader(self._columns),
            codes=tuple(self._codes),
            results=tuple(self._results),
            arrays=_Reader(self._arrays),
            dtypes=tuple(self._dtypes),
            texts=_Reader(self._texts),
        )

    def _add(self, added: _Struct) -> list[_Struct]:
        """Add a struct; return those it points to."""
        start = self._end
        hints = get_type_hints(added.python)
        nested: list[_Struct] = []
        if added.pointer is not None:
            self._values[added.pointer] = start
            self._pointers.append(added.pointer)
        for name, declared in added.ctype.fields:
            of, position = declared.type, len(self._values)
            self._packing += f"{start + declared.offset - self._end}x"
            self._end = start + declared.offset
            for code in self._codes_of(of):
                self._packing += code
                self._values.append(0)
                self._offsets.append(self._end)
                self._end += struct.calcsize(code)
            if name == "struct_size":
                self._values[position] = self._ffi.sizeof(added.ctype)
            elif name in self._later:
                continue
            elif self._is_struct_pointer(of):
                nested.append(_Struct(of.item, hints[name], f"{added.owner}{name}.", position))
            else:
                self._add_field(of, hints.get(name), (added.owner + name, position))
        size = self._ffi.sizeof(added.ctype) + 7 & ~7
        self._packing += f"{start + size - self._end}x"
        self._end = start + size
        return nested

    def _codes_of(self, ctype: CData) -> str:
        if ctype.kind == "struct":  # a text: address and length
            return "QQ"
        return "Q" if ctype.kind == "pointer" else _NUMBERS[ctype.cname][0]

    def _is_struct_pointer(self, ctype: CData) -> bool:
        is_pointer = ctype.kind == "pointer" and ctype.item.kind == "struct"
        return bool(is_pointer and ctype.item != self._text)

    def _add_field(self, of: CData, hint: Any, field: tuple[str, int]) -> None:
        """Add what comes from a result, by its type in C and the hint of its type in Python."""
        if of.kind == "struct" or (of.kind == "pointer" and of.item == self._text):
            self._texts.append(field)
        elif of.kind != "pointer":
            self._numbers.append(field)
        elif of.item.kind == "pointer":
            self._results.append(len(self._columns))
            self._columns.append(field)
            self._codes.append("Q")
        elif get_origin(hint) is tuple:
            self._columns.append(field)
            self._codes.append(_NUMBERS[of.item.cname][0])
        else:
            self._arrays.append(field)
            self._dtypes.append(_NUMBERS[of.item.cname][1])


class _Sizes(NamedTuple):
    """The lengths of columns, the bytes of arrays, and the bytes of texts or of each of several."""

    columns: tuple[int, ...]
    arrays: tuple[int, ...]
    texts: tuple[int | tuple[int, ...], ...]


class _Plan(NamedTuple):
    """Where everything goes in a block of one layout and certain sizes.

    ``pack`` writes ``values`` with the numbers in their places, then the items of all columns,
    then the bytes of all texts. The arrays follow, each filled up to 8 bytes. ``words`` holds as
    uint64 where in the block there are offsets, which are to become addresses.
    """

    pack: struct.Struct
    values: tuple[int, ...]
    words: bytes


class _Planner:
    """Works out one plan: the structs and tables of texts, columns, texts, arrays."""

    def __init__(self, layout: _Layout, sizes: _Sizes) -> None:
        self._packing = layout.packing
        self._values = list(layout.values)
        self._offsets = list(layout.offsets)
        self._pointers = list(layout.pointers)
        self._end = struct.calcsize(layout.packing)
        texts = list(zip(layout.texts.positions, sizes.texts, strict=True))
        tables = [self._add_table(position, each) for position, each in texts]
        for position, code, count in zip(
            layout.columns.positions, layout.codes, sizes.columns, strict=True
        ):
            self._add(position, f"{count}{code}", count * struct.calcsize(code))
        for (position, each), table in zip(texts, tables, strict=True):
            if isinstance(each, tuple):
                self._add_texts(table, each)
            else:
                self._values[position + 1] = each
                self._add(position, f"{each + 1}s", each + 1)
        for position, size in zip(layout.arrays.positions, sizes.arrays, strict=True):
            self._point(position, size)

    def plan(self) -> _Plan:
        """Return it."""
        words = [self._offsets[position] for position in self._pointers]
        packed = struct.pack(f"{len(words)}Q", *words)
        return _Plan(struct.Struct(self._packing), tuple(self._values), packed)

    def _point(self, position: int, size: int) -> None:
        """Let a value point to the next bytes; NULL if there are none."""
        if size:
            self._values[position] = self._end
            self._pointers.append(position)
            self._end += size + 7 & ~7

    def _add(self, position: int, packing: str, size: int) -> None:
        if size:
            self._packing += f"{packing}{-size & 7}x"
            self._point(position, size)

    def _add_table(self, position: int, sizes: int | tuple[int, ...]) -> int:
        """Add the addresses and lengths of several texts; return the position of the first."""
        first = len(self._values)
        if isinstance(sizes, tuple):
            start = self._end
            self._add(position, f"{2 * len(sizes)}Q", 16 * len(sizes))
            for index, size in enumerate(sizes):
                self._values += (0, size)
                self._offsets += (start + 16 * index, start + 16 * index + 8)
        return first

    def _add_texts(self, table: int, sizes: tuple[int, ...]) -> None:
        """Add texts that end with a NUL each, and let their table point to them."""
        total = sum(sizes) + len(sizes)
        start = self._end
        if sizes:
            self._packing += f"{total}s{-total & 7}x"
        for index, size in enumerate(sizes):
            self._values[table + 2 * index] = start
            self._pointers.append(table + 2 * index)
            start += size + 1
        self._end += total + 7 & ~7


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
        self._layouts = {
            python: _LayoutBuilder(ffi, ffi.typeof(ctype), python, filled_later).layout()
            for python, ctype in structs.items()
        }
        self._plans: dict[tuple[type, _Sizes], _Plan] = {}
        # A call through cffi gives up the interpreter lock and may wait milliseconds to get it
        # back; a PYFUNCTYPE keeps it.
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "boundary_block_copy")))
        self._copy = ctypes.PYFUNCTYPE(
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
        )(address)

    def encode(self, result: object) -> int:
        """Copy a result into a new block and return its address."""
        data, words = self._pack(result)
        address: int | None = self._copy(data, len(data), words, len(words) // 8)
        if not address:
            raise OutOfMemoryError(f"no memory for a result of {len(data)} bytes; send fewer rows")
        return address

    def _pack(self, result: object) -> tuple[bytes, bytes]:
        """Return a block as it is but for its addresses, and the words that are to become such."""
        kind = type(result)
        layout = self._layouts[kind]
        read = columns = layout.columns.read(result)
        if layout.results:
            columns = tuple(
                (0,) * len(column) if index in layout.results else column
                for index, column in enumerate(read)
            )
        arrays = [
            _as_dtype(*each) for each in zip(layout.arrays.read(result), layout.dtypes, strict=True)
        ]
        texts = [_encode_texts(each) for each in layout.texts.read(result)]
        sizes = _Sizes(
            tuple(map(len, columns)),
            tuple([each.nbytes for each in arrays]),
            tuple([each for _, each in texts]),
        )
        plan = self._plans.get((kind, sizes)) or self._make_plan(kind, sizes)
        values: list[Any] = list(plan.values)
        for position, number in zip(
            layout.numbers.positions, layout.numbers.read(result), strict=True
        ):
            values[position] = number
        for column in columns:
            values += column
        values += [data for data, _ in texts if data]
        parts = [plan.pack.pack(*values)]
        for array, size in zip(arrays, sizes.arrays, strict=True):
            parts.append(array)
            if size & 7:
                parts.append(bytes(-size & 7))
        data = b"".join(parts)
        return (
            self._with_results(layout, data, plan.words, read)
            if layout.results
            else (data, plan.words)
        )

    def _with_results(
        self, layout: _Layout, head: bytes, head_words: bytes, columns: Sequence[Any]
    ) -> tuple[bytes, bytes]:
        """Append the results that columns hold, each as it would lie in a block of its own."""
        parts, words, end = [bytearray(head)], [head_words], len(head)
        for index in layout.results:
            position = layout.columns.positions[index]
            (place,) = struct.unpack_from("Q", head, layout.offsets[position])
            for result in columns[index]:
                if result is not None:
                    data, inner = self._pack(result)
                    part, at = bytearray(data), np.frombuffer(inner, np.uint64)
                    np.frombuffer(part, np.uint64)[at // np.uint64(8)] += np.uint64(end)
                    struct.pack_into("Q", parts[0], place, end)
                    words += struct.pack("Q", place), (at + np.uint64(end)).tobytes()
                    parts.append(part)
                    end += len(part)
                place += 8
        return b"".join(parts), b"".join(words)

    def _make_plan(self, kind: type, sizes: _Sizes) -> _Plan:
        """Make a plan, and keep it if it is small: calls of one text need few different ones."""
        plan = _Planner(self._layouts[kind], sizes).plan()
        if len(plan.values) + sum(sizes.columns) < _MAX_KEPT_VALUES:
            if len(self._plans) >= _MAX_KEPT:
                self._plans.clear()
            self._plans[kind, sizes] = plan
        return plan


def _as_dtype(array: Any, dtype: Any) -> Any:
    """Return an array that can be copied as it lies in memory; of None, one without items."""
    if array is None:
        return _NOTHING
    if array.dtype is dtype and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array, dtype)


def _encode_texts(content: str | tuple[str, ...]) -> tuple[bytes, int | tuple[int, ...]]:
    """Return texts with a NUL behind each, and their lengths without it."""
    if isinstance(content, str):
        data = content.encode()
        return data + b"\0", len(data)
    return _encode_few(content) if len(content) <= _FEW_TEXTS else _encode_tuple(content)


def _encode_tuple(content: tuple[str, ...]) -> tuple[bytes, tuple[int, ...]]:
    encoded = [text.encode() for text in content]
    return b"".join([text + b"\0" for text in encoded]), tuple(map(len, encoded))


# The labels of a model, and the empty message of a single row, are the same in every result.
_encode_few = lru_cache(maxsize=256)(_encode_tuple)
