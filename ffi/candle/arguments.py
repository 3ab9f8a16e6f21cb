"""C arguments to plain Python values, as the annotations of a verb's parameters say."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NewType, get_type_hints

import numpy as np
from numpy.typing import NDArray

from libsemantic.engine.config import MAX_ROWS
from libsemantic.engine.errors import InvalidArgumentError

from ..codecs import FFI, CData, decode_name

# The bytes of a text, not decoded yet: the engine does that.
Text = NewType("Text", bytes)
# An array of texts and their number: two C arguments.
Texts = NewType("Texts", list[bytes])
# UTF-8 that must be there: a path or a name.
Name = NewType("Name", str)
# UTF-8 that may be NULL or empty, which is "" then.
OptionalName = NewType("OptionalName", str)
# An array of names and their number, which may be NULL and 0: two C arguments.
OptionalNames = NewType("OptionalNames", list[str])
# An opaque pointer as a number; NULL is 0.
Address = NewType("Address", int)
# An array of double and its number: two C arguments; a view of the caller's memory.
Doubles = NewType("Doubles", NDArray[np.float64])
# A pointer as it is; the verb reads it.
Pointer = NewType("Pointer", object)


class OptionalText(NamedTuple):
    """A text, or None for NULL where that has an answer of its own."""

    data: bytes | None


class OptionalTexts:
    """An array of texts and their number, not looked at yet: two C arguments."""

    def __init__(self, ffi: FFI, array: CData, count: int) -> None:
        self._ffi = ffi
        self._array = array
        self.count = count

    @property
    def is_null(self) -> bool:
        """Tell whether the array itself is NULL."""
        return not self._array

    def __getitem__(self, index: int) -> bytes | None:
        """Return one text, None for NULL; the array must be there and have it."""
        pointer = self._array[index]
        return self._ffi.string(pointer) if pointer else None


Reader = Callable[[Sequence[Any], int, str], Any]


class Arguments:
    """Reads the C arguments of one verb."""

    def __init__(self, ffi: FFI, verb: Callable[..., object], given: int) -> None:
        """Read ``given`` C arguments; parameters with defaults need none.

        Raise TypeError where the verb has an annotation that is not known here.
        """
        self._ffi = ffi
        readers: dict[object, tuple[Reader, int]] = {
            Text: (self._text, 1),
            OptionalText: (self._optional_text, 1),
            Texts: (self._texts, 2),
            OptionalTexts: (self._optional_texts, 2),
            Name: (self._name, 1),
            OptionalName: (self._optional_name, 1),
            OptionalNames: (self._optional_names, 2),
            Address: (self._address, 1),
            Doubles: (self._doubles, 2),
            Pointer: (_as_it_is, 1),
            **dict.fromkeys((int, float, bool), (_as_it_is, 1)),
        }
        hints = get_type_hints(verb)
        self._parameters: list[tuple[Reader, int, str]] = []
        self.count = 0  # C arguments that are read
        self.variadic = False
        for name, parameter in list(inspect.signature(verb).parameters.items())[1:]:
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                self.variadic = True
                continue
            if parameter.default is not parameter.empty and self.count >= given:
                break
            known = readers.get(hints[name])
            if known is None:
                raise TypeError(f"{verb.__name__}: no C argument is read as {hints[name]}")
            self._parameters.append((known[0], self.count, name))
            self.count += known[1]

    def read(self, arguments: Sequence[Any]) -> list[Any]:
        """Return one value for each parameter of the verb.

        Raise InvalidArgumentError for NULL and, where a str is asked for, for what is not UTF-8.
        """
        return [reader(arguments, place, name) for reader, place, name in self._parameters]

    def _text(self, arguments: Sequence[Any], place: int, name: str) -> bytes:
        pointer = arguments[place]
        if not pointer:
            raise InvalidArgumentError(f"{name} is NULL; pass a text")
        text: bytes = self._ffi.string(pointer)
        return text

    def _optional_text(self, arguments: Sequence[Any], place: int, name: str) -> OptionalText:
        return OptionalText(self._text(arguments, place, name) if arguments[place] else None)

    def _optional_texts(self, arguments: Sequence[Any], place: int, name: str) -> OptionalTexts:
        del name
        return OptionalTexts(self._ffi, *arguments[place : place + 2])

    def _texts(self, arguments: Sequence[Any], place: int, name: str) -> list[bytes]:
        array, count = arguments[place : place + 2]
        if not array:
            raise InvalidArgumentError(f"{name} is NULL; pass an array of texts")
        if not 0 < count <= MAX_ROWS:
            raise InvalidArgumentError(f"{count} {name}; pass 1 to {MAX_ROWS}")
        texts = []
        for index in range(count):
            if not array[index]:
                raise InvalidArgumentError(f"number {index} of {name} is NULL; pass a text")
            texts.append(self._ffi.string(array[index]))
        return texts

    def _name(self, arguments: Sequence[Any], place: int, name: str) -> str:
        found = decode_name(self._ffi, arguments[place], name)
        if found is None:
            raise InvalidArgumentError(f"{name} is NULL; pass a text")
        return found

    def _optional_name(self, arguments: Sequence[Any], place: int, name: str) -> str:
        return decode_name(self._ffi, arguments[place], name) or ""

    def _optional_names(self, arguments: Sequence[Any], place: int, name: str) -> list[str]:
        array, count = arguments[place : place + 2]
        if count < 0 or count > MAX_ROWS or (count and not array):
            raise InvalidArgumentError(
                f"{name} are {count} in {'an array' if array else 'no array'}; pass an array and "
                f"its length, at most {MAX_ROWS}, or NULL and 0"
            )
        return [self._name(array, index, name) for index in range(count)]

    def _address(self, arguments: Sequence[Any], place: int, name: str) -> int:
        del name
        return int(self._ffi.cast("uintptr_t", arguments[place]))

    def _doubles(self, arguments: Sequence[Any], place: int, name: str) -> NDArray[np.float64]:
        array, count = arguments[place : place + 2]
        if not array:
            raise InvalidArgumentError(f"{name} is NULL; pass an array of numbers")
        try:
            memory = self._ffi.buffer(array, count * 8)
        except OverflowError:
            raise InvalidArgumentError(
                f"{name} has {count} numbers; no memory holds them"
            ) from None
        return np.frombuffer(memory, np.float64)


def _as_it_is(arguments: Sequence[Any], place: int, name: str) -> Any:
    del name
    return arguments[place]
