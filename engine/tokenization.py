"""Texts to token arrays, with the tokenizer of a model's folder.

Truncation and padding are switched off once, at load, and never touched again: changing them
while another thread encodes is an error inside the library, and from tokenizers 0.23.1 the
pieces it cuts off are incomplete. Texts are encoded whole; ``windows`` cuts them.
"""

import json
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from .config import Shorten
from .errors import (
    BadArtifactError,
    InternalError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
)
from .memory import MORE_THREADS, require_bytes
from .tokenizer_guard import check_tokenizer

IntArray = NDArray[np.int64]
Span = tuple[int, int]

# Ids no vocabulary reaches: they stand for the first and second text when a template is read.
_FIRST_PROBE, _SECOND_PROBE = 2**32 - 1, 2**32 - 2
# Such a text holds the interpreter lock for less than a millisecond.
_SHORT_CHARACTERS = 1024
_LONG_TOKENS = 2000  # copying fewer takes less than a millisecond
_ZEROS = np.zeros(512, np.int64)  # to make one costs 10 µs after a run
_ZEROS.flags.writeable = False
_COPYING, _FREE = threading.Lock(), nullcontext()
_MAX_FILE_BYTES = 256 << 20  # the largest known vocabularies take 35 MB
# What the tokenizers library takes at most, measured: punctuation and 4-byte letters take most.
_MEMORY_PER_CHARACTER = 700
_MEMORY_PER_TEXT = 4096
_MEMORY_PER_CALL = 1 << 20
_MEMORY_PER_FILE_BYTE = 20
_MAX_REASON = 300  # the library's own may quote all of the file
# How the library writes a file: what is dropped comes first.
_OBJECT = rb"null|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_DROPPED = re.compile(
    rb'\s*\{\s*"version"\s*:\s*"1\.0"\s*,\s*"truncation"\s*:\s*(?:'
    + _OBJECT
    + rb')\s*,\s*"padding"\s*:\s*(?:'
    + _OBJECT
    + rb')\s*,\s*(?="added_tokens")'
)
_MAX_DROPPED = 4096
_PAD_TOKENS = ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class Layout:
    """Special tokens of a template: before the first text, between the texts, at the end."""

    before: int
    between: int
    after: int

    @property
    def special_count(self) -> int:
        """Count the special tokens of the template."""
        return self.before + self.between + self.after


class Encoded(NamedTuple):
    """One whole encoding: ``ids`` and ``type_ids`` int64[tokens], special tokens included.

    ``first`` and ``second`` are the half-open token ranges of the two texts; ``second`` is None
    for a single text. Every token outside them belongs to the template. A special token that the
    user wrote into the text lies inside a range and is content.
    """

    ids: IntArray
    type_ids: IntArray
    first: Span
    second: Span | None = None
    source: tokenizers.Encoding | None = None

    @property
    def token_count(self) -> int:
        """Count the tokens, special tokens included."""
        return len(self.ids)

    @property
    def special_count(self) -> int:
        """Count the tokens of the template."""
        start, end = self.second or (0, 0)
        return len(self.ids) - (self.first[1] - self.first[0]) - (end - start)

    def part(self, part: Shorten) -> Span:
        """Return the token range of one text; ``AUTO`` means the first."""
        if part is not Shorten.SECOND:
            return self.first
        if self.second is None:
            raise InternalError("the second part of a single text was asked for")
        return self.second

    def offsets(self, part: Shorten = Shorten.FIRST) -> IntArray:
        """Return int64[tokens of the part, 2]: half-open code-point ranges in that part's text.

        Built anew at each call. Raise InternalError if the encoding was made without offsets.
        """
        if self.source is None:
            raise InternalError("offsets were asked of an encoding that was made without them")
        start, end = self.part(part)
        with _alone(self.source):
            pairs = self.source.offsets[start:end]
            flat = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs))
        return flat.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A loaded tokenizer; safe to use from any number of threads.

    ``typed``: tokens of a single text are not all of type 0. ``vocab_size`` is the largest id + 1,
    added tokens included. ``pad_id`` is the id of the file's padding section, else of a token named
    ``[PAD]`` or ``<pad>``, else None. ``pair`` is None where the file has no usable template for
    two texts.
    """

    backend: tokenizers.Tokenizer = field(repr=False)
    typed: bool
    vocab_size: int
    pad_id: int | None
    single: Layout
    pair: Layout | None

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its exact name, None where there is none."""
        return self.backend.token_to_id(token)

    def tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Return the names of tokens; an id that stands for none is empty."""
        return tuple(self.backend.id_to_token(number) or "" for number in ids)

    def only_added_from(self, first: int) -> bool:
        """Tell whether all tokens whose id is ``first`` or more were added to the vocabulary.

        A text has them only where it spells them out, unless the template does.
        """
        backend = self.backend
        added = sum(number >= first for number in backend.get_added_tokens_decoder())
        others = sum(backend.id_to_token(number) is not None for number in range(first))
        return added + others == backend.get_vocab_size(True)

    def encode(self, texts: Sequence[str], offsets: bool) -> list[Encoded]:
        """Encode each text whole, with special tokens.

        Raise BadArtifactError if the tokenizer fails on a text, OutOfMemoryError.
        """
        before, after = self.single.before, self.single.after
        return [
            _encoded(source, (before, len(source) - after), None, offsets, self.typed)
            for source in self._run(texts, offsets)
        ]

    def encode_pairs(
        self, left: Sequence[str], right: Sequence[str], offsets: bool
    ) -> list[Encoded]:
        """Encode each pair whole, with the special tokens of the pair template.

        A pair whose right text is empty is encoded like the left text alone, as transformers
        does; its ``second`` is empty and lies at the end.

        Raise UnsupportedError where the tokenizer has no usable pair template, InternalError if
        the two sides differ in number, BadArtifactError if the tokenizer fails on a text,
        OutOfMemoryError.
        """
        if self.pair is None:
            raise UnsupportedError(
                "tokenizer.json has no template that holds the first text, then the second, once "
                "each; give a tokenizer with a pair template"
            )
        if len(left) != len(right):
            raise InternalError(f"{len(left)} left texts came with {len(right)} right texts")
        before, between, after = self.pair.before, self.pair.between, self.pair.after
        inputs = [(a, b) if b else a for a, b in zip(left, right, strict=True)]
        result = []
        for source, text in zip(self._run(inputs, offsets), right, strict=True):
            count = len(source)
            if not text:
                first = self.single.before, count - self.single.after
                result.append(_encoded(source, first, (count, count), offsets))
                continue
            end = count - after
            try:
                start = source.sequence_ids.index(1)
            except ValueError:  # the second text has no tokens
                start = end
            result.append(_encoded(source, (before, start - between), (start, end), offsets))
        return result

    def _run(
        self, inputs: Sequence[str] | Sequence[str | tuple[str, str]], offsets: bool
    ) -> list[tokenizers.Encoding]:
        only = inputs[0] if len(inputs) == 1 else None
        if isinstance(only, str):
            characters = len(only)
        else:
            characters = sum(
                len(each) if isinstance(each, str) else sum(map(len, each)) for each in inputs
            )
        require_bytes(
            _MEMORY_PER_CALL + _MEMORY_PER_TEXT * len(inputs) + _MEMORY_PER_CHARACTER * characters,
            "to turn the texts into tokens",
        )
        # Both batch calls release the interpreter lock and hand over to other threads; ``encode``
        # holds it, which is cheaper for one short text. The fast one leaves every offset (0, 0)
        # and is else equal.
        backend = self.backend
        try:
            if characters <= _SHORT_CHARACTERS and isinstance(only, str):
                return [backend.encode(only)]
            return backend.encode_batch(inputs) if offsets else backend.encode_batch_fast(inputs)
        except BaseException as error:
            if not _is_library_fault(error):
                raise
            raise BadArtifactError(
                "the tokenizer failed on a text; tokenizer.json does not cover every character or "
                "is damaged, replace it with the model's own"
            ) from error


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class HeldTokenizer:
    """A tokenizer, which models with equal files share, and the resident memory that it took."""

    tokenizer: Tokenizer
    grown_bytes: int


def start_threads() -> None:
    """Let the tokenizers library start its threads, which it keeps for the life of the process.

    It tries only once: where the first try is refused, every later batch fails. Raise
    OutOfMemoryError then.
    """
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    try:
        backend.encode_batch(["a"])
    except BaseException as error:
        if not _is_library_fault(error):
            raise
        raise OutOfMemoryError(
            f"the system refused the threads that turn texts into tokens; {MORE_THREADS} and start "
            "it anew"
        ) from error


def load_tokenizer(path: Path) -> Tokenizer:
    """Read the ``tokenizer.json`` at ``path`` and make it; raise as the two steps do."""
    return make_tokenizer(path, read_tokenizer(path))


def read_tokenizer(path: Path) -> bytes:
    """Return the content of a ``tokenizer.json``.

    Raise NotFoundError if it is not there, BadArtifactError if it cannot be read or is too large.
    """
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _MAX_FILE_BYTES else b""
    except FileNotFoundError:
        raise NotFoundError(
            f"{path} is not there; save the tokenizer in the fast format (tokenizer.json) beside "
            "the model"
        ) from None
    except OSError as error:
        raise BadArtifactError(f"{path} cannot be read ({error.strerror}); check it") from error
    if size > _MAX_FILE_BYTES:
        raise BadArtifactError(
            f"{path} has {size} bytes, a tokenizer at most {_MAX_FILE_BYTES}; fetch it again"
        )
    return data


def identity_of(data: bytes) -> tuple[bytes, object]:
    """Return what determines the tokenizer that is made of a file's content.

    Files that differ only in truncation and padding, which are dropped, make the same one: as a
    classifier's and an embedder's of one family often do. Of padding the id of its token is kept.
    """
    head = _DROPPED.match(data[:_MAX_DROPPED])
    if head is None:
        return sha256(data).digest(), None
    try:
        padding = json.loads(head[0].rstrip()[:-1] + b"}")["padding"]
    except (ValueError, RecursionError):  # it is told with the whole file
        return sha256(data).digest(), None
    pad_id = "none" if padding is None else padding.get("pad_id")
    if padding is not None and type(pad_id) is not int:
        return sha256(data).digest(), None
    return sha256(memoryview(data)[head.end() :]).digest(), pad_id


def make_tokenizer(path: Path, data: bytes) -> Tokenizer:
    """Make the tokenizer of a file's content; truncation and padding it asks for are dropped.

    Raise BadArtifactError if it cannot be used, UnsupportedError if it asks for more memory or time
    than a tokenizer needs, OutOfMemoryError.
    """
    size = len(data)
    data = check_tokenizer(path, data)
    require_bytes(_MEMORY_PER_FILE_BYTE * size, f"to read {path}")
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
        padding = backend.padding
        backend.no_truncation()
        backend.no_padding()
        if isinstance(backend.model, tokenizers.models.BPE):
            # Each thread that meets it would keep 10,000 words, even of a tokenizer long gone,
            # until the thread ends. Without that a long text takes a quarter more of its time.
            backend.model._resize_cache(0)
        vocab_size = _vocab_size(backend)
        single, pair, typed = _read_layouts(backend)
    except BaseException as error:
        if not _is_library_fault(error):
            raise
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise BadArtifactError(f"{path} is damaged ({reason}); fetch it again") from error
    if single is None:
        raise BadArtifactError(
            f"{path} has a template that does not hold the text exactly once; repair its "
            "post_processor"
        )
    if padding is not None:
        found = [int(padding["pad_id"])]
    else:
        named = map(backend.token_to_id, _PAD_TOKENS)
        found = [number for number in named if number is not None]
    return Tokenizer(backend, typed, vocab_size, found[0] if found else None, single, pair)


def to_byte_offsets(text: str, offsets: IntArray) -> IntArray:
    """Convert code-point offsets of ``text``, of any shape, to UTF-8 byte offsets."""
    if text.isascii():
        return offsets
    data = np.frombuffer(text.encode(), np.uint8)
    # Every byte that is not a continuation (10xxxxxx) starts a character.
    starts = np.flatnonzero((data & 0xC0) != 0x80)
    return np.append(starts, len(data))[offsets]


def _alone(source: tokenizers.Encoding) -> AbstractContextManager[object]:
    """Let one thread at a time copy a long encoding.

    To copy 20,000 tokens and their offsets holds the interpreter lock for some milliseconds; many
    threads that do so in turn would keep any other thread waiting for all of them.
    """
    return _COPYING if len(source) > _LONG_TOKENS else _FREE


def _encoded(
    source: tokenizers.Encoding, first: Span, second: Span | None, offsets: bool, typed: bool = True
) -> Encoded:
    if len(source) > _LONG_TOKENS:
        with _COPYING:
            ids, type_ids = _copied(source, typed)
    else:
        ids, type_ids = _copied(source, typed)
    return Encoded(ids, type_ids, first, second, source if offsets else None)


def _copied(source: tokenizers.Encoding, typed: bool) -> tuple[IntArray, IntArray]:
    ids = np.array(source.ids, np.int64)
    if typed:
        return ids, np.array(source.type_ids, np.int64)
    count = len(ids)
    return ids, _ZEROS[:count] if count <= len(_ZEROS) else np.zeros(count, np.int64)


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    """Return the largest id + 1.

    Where the ids have no gaps it is their number. To count them one by one lets other threads
    run, while ``get_vocab`` stops them for half a second at 256,000 tokens.
    """
    count = backend.get_vocab_size(True)
    if all(backend.id_to_token(number) is not None for number in range(count)):
        return count
    return max(backend.get_vocab(True).values(), default=-1) + 1


def _read_layouts(backend: tokenizers.Tokenizer) -> tuple[Layout | None, Layout | None, bool]:
    """Read the templates for one and for two texts by post-processing two made-up tokens.

    The third value tells whether the tokens of the first are not all of type 0.

    None stands for a template that lacks a text, repeats one, swaps the two, or, for pairs, does
    not tell them apart in its sequence ids.
    """
    maker = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": _FIRST_PROBE, "b": _SECOND_PROBE}, unk_token="a")
    )
    first, second = maker.encode("a"), maker.encode("b")
    one, two = backend.post_process(first), backend.post_process(first, second)
    single = pair = None
    if one.ids.count(_FIRST_PROBE) == 1:
        at = one.ids.index(_FIRST_PROBE)
        single = Layout(at, 0, len(one.ids) - at - 1)
    if two.ids.count(_FIRST_PROBE) == two.ids.count(_SECOND_PROBE) == 1:
        left, right = two.ids.index(_FIRST_PROBE), two.ids.index(_SECOND_PROBE)
        parts = [part for part in two.sequence_ids if part is not None]
        if left < right and parts == [0, 1] and two.sequence_ids[right] == 1:
            pair = Layout(left, right - left - 1, len(two.ids) - right - 1)
    return single, pair, any(one.type_ids)


def _is_library_fault(error: BaseException) -> bool:
    """Tell the tokenizers library's own errors, its Rust panics included, from all others.

    Python runs the host's signal handlers while the library works. What they raise comes from a
    frame of their own; the library's errors come from the line that called it.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    called = place is not None and place.tb_frame.f_globals is globals()
    kind = type(error)
    return called and (kind in (Exception, ValueError) or kind.__name__ == "PanicException")
