"""Answers of candle's verbs as C values: one block, whose address is the first pointer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cffi import FFI

from libsemantic.ffi.candle import answers
from libsemantic.ffi.candle.answers import Interned, Memory, answer_for

TYPES = """
typedef struct { char *name; float score; int at; } item;
typedef struct { _Bool ok; int n; item *items; char **names; float *values; int *ids; } all;
typedef struct { char *message; char *remedy; size_t size; } told;
typedef struct { char *label; float *values; } labelled;
"""


class Heap(Memory):
    """Memory of Python, which notes its blocks."""

    def __init__(self, ffi: FFI) -> None:
        self.ffi = ffi
        self.blocks: list[Any] = []
        self.freed: list[int] = []

    def block(self, size: int) -> tuple[int, Any]:
        data = self.ffi.new("char[]", size)
        self.blocks.append(data)
        return int(self.ffi.cast("uintptr_t", data)), self.ffi.buffer(data)

    def free(self, base: int) -> None:
        self.freed.append(base)


@pytest.fixture
def heap() -> Heap:
    ffi = FFI()
    ffi.cdef(TYPES)
    return Heap(ffi)


def write(heap: Heap, ctype: str, **fields: object) -> Any:
    found = heap.ffi.new(f"{ctype} *")
    answer_for(heap.ffi, heap, heap.ffi.typeof(found)).write(SimpleNamespace(**fields), found)
    return found


def test_everything_lies_in_one_block(heap: Heap) -> None:
    ffi = heap.ffi
    items = [
        SimpleNamespace(name="Zürich", score=0.5, at=-1),
        SimpleNamespace(name=b"Z\xc3\xbcrich", score=0.25, at=2),
        SimpleNamespace(name=None, score=0.0, at=0),
        SimpleNamespace(name="", score=0.0, at=0),
        SimpleNamespace(name="a\0b", score=0.0, at=0),
    ]
    found = write(
        heap,
        "all",
        ok=True,
        n=5,
        items=items,
        names=["x", "", "x", "n\0"],
        values=np.array([1.5, -2.0]),
        ids=np.array([7, 2**31 - 1], np.int64),
    )
    assert len(heap.blocks) == 1
    start = int(ffi.cast("uintptr_t", heap.blocks[0]))
    assert int(ffi.cast("uintptr_t", found.items)) == start
    assert (found.ok, found.n) == (True, 5)
    assert ffi.string(found.items[0].name) == ffi.string(found.items[1].name) == "Zürich".encode()
    assert [found.items[i].score for i in range(2)] == [0.5, 0.25]
    assert [found.items[i].at for i in range(3)] == [-1, 2, 0]
    assert [bool(found.items[i].name) for i in range(5)] == [True, True, False, True, False]
    assert ffi.string(found.items[3].name) == b""
    assert [ffi.string(found.names[i]) for i in range(3)] == [b"x", b"", b"x"]
    assert not found.names[3]
    assert [found.values[0], found.values[1]] == [1.5, -2.0]
    assert [found.ids[0], found.ids[1]] == [7, 2**31 - 1]


def test_the_first_pointer_that_is_not_null_is_the_block(heap: Heap) -> None:
    ffi = heap.ffi

    def address(pointer: Any) -> int:
        return int(ffi.cast("uintptr_t", pointer))

    found = write(heap, "all", ok=False, n=0, items=[], names=(), values=None, ids=[3])
    assert not found.items
    assert not found.names
    assert not found.values
    assert address(found.ids) == address(heap.blocks[-1])
    found = write(heap, "told", message="why", remedy="what", size=2**40)
    assert address(found.message) == address(heap.blocks[-1])
    assert (ffi.string(found.message), ffi.string(found.remedy)) == (b"why", b"what")
    assert found.size == 2**40
    found = write(heap, "told", message=None, remedy="what", size=0)
    assert address(found.remedy) == address(heap.blocks[-1])
    assert len(heap.blocks) == 3
    found = write(heap, "told", message=None, remedy=None, size=0)
    assert len(heap.blocks) == 3
    assert not found.message


def test_labels_outlive_their_answer_and_are_made_once(heap: Heap) -> None:
    ffi, labels = heap.ffi, Interned(heap.ffi)
    address = labels.address("jailbréak")
    assert labels.address("jailbréak") == address != labels.address("benign")
    found = write(heap, "labelled", label=address, values=[0.5])
    assert ffi.string(found.label) == "jailbréak".encode()
    assert int(ffi.cast("uintptr_t", found.values)) == int(ffi.cast("uintptr_t", heap.blocks[-1]))
    # What semantic_free reads before a block holds no mark of one.
    before = ffi.buffer(found.label - answers._BLOCK_HEADER, answers._BLOCK_HEADER)
    assert bytes(before) == bytes(answers._BLOCK_HEADER)


def test_a_struct_whose_answer_cannot_be_written_stays_as_it_is(heap: Heap) -> None:
    found = heap.ffi.new("told *", {"size": 9})
    writer = answer_for(heap.ffi, heap, heap.ffi.typeof(found))
    for size in (-1, 2**64, "x"):
        with pytest.raises(Exception, match=r"argument|required|range"):
            writer.write(SimpleNamespace(message="why", remedy=None, size=size), found)
        assert (found.size, bool(found.message)) == (9, False)
        assert heap.freed[-1] == int(heap.ffi.cast("uintptr_t", heap.blocks[-1]))
    assert len(heap.freed) == len(heap.blocks) == 3
