"""Refuse a ``tokenizer.json`` that would end the process inside the tokenizers library.

The library is Rust: where memory is refused, and where it makes text of bytes that are not UTF-8,
it ends the process, which Python cannot catch. A file can ask for either, as long as nobody looks
at it first. Whole files are not parsed here, since that stops every other thread for long: only
the values of the keys that matter are, wherever in the file these keys stand.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from .errors import BadArtifactError, UnsupportedError

# A text that is multiplied takes some 24 bytes of memory for each of its new bytes.
_MAX_GROWTH = 1024
_MAX_TEMPLATE_TOKENS = 1024
# WordPiece tries every part of a word: the work for one word grows with the square, or worse.
_MAX_WORD_CHARACTERS = 200
# Groups and repetitions nest, and the library follows them on the caller's stack: so many fit into
# 192 KiB, measured. The largest known expressions have 60.
_MAX_NESTING = 200
_AGAIN = "fetch it again"
_OWN = "use the tokenizer that belongs to the model"

# What is parsed here: nothing else runs meanwhile, and parts of parts are parsed again.
_MAX_PARTS = 8 << 20
_MAX_MODEL = 32 << 20
_LEAST_PARSED = 1024  # that each value is counted for
# Printable ASCII that need not be escaped: a key spelt so is not found by its name.
_ESCAPED = re.compile(r"\\(?:/|u00(?:[2-6]|7[0-9a-eA-E]))")
_ESCAPE = re.compile(r"\\(?:u00([2-7][0-9a-fA-F])|.)", re.DOTALL)
_PART = re.compile(r'"(?:normalizer|pre_tokenizer|post_processor)"[ \t\r\n]*:[ \t\r\n]*(?=[{\[])')
_MODEL = re.compile(r'"model"[ \t\r\n]*:[ \t\r\n]*(?=\{)')
_PREFIX = re.compile(r'"continuing_subword_prefix"[ \t\r\n]*:[ \t\r\n]*"[^"]')
_WORD_LIMIT = re.compile(r'"max_input_chars_per_word"[ \t\r\n]*:[ \t\r\n]*([0-9]+)')
_EXPRESSION = re.compile(r'"Regex"[ \t\r\n]*:[ \t\r\n]*(?=")')
# What may nest: also repetitions do, (?i) holds all that follows, and (?~ takes much more stack.
_NESTING = re.compile(r"\\[pP]\{[^}]*\}|\\.|(\(\?~)|([(\[*+?{])", re.DOTALL)
_ABSENT_WEIGHT = 4
_TEMPLATES = ("single", "pair")
_DECODER = json.JSONDecoder()
# Doubles, at most: letters become two bytes, or a letter and its accent.
_DOUBLING = {"ByteLevel", "NFC", "NFD", "NFKC", "NFKD"}


def check_tokenizer(path: Path, data: bytes) -> bytes:
    """Return the content of the file at ``path`` as it is safe to be loaded.

    Raise BadArtifactError for what is damaged or makes the library build broken text, and
    UnsupportedError for what lets a short text fill the memory or take for ever.
    """
    try:
        text = data.decode()
        if _ESCAPED.search(text):
            text = _ESCAPE.sub(_plain, text)
            data = text.encode()
        parts = [part for value in _values(_PART, text, _MAX_PARTS) for part in _objects(value)]
        for expression in _values(_EXPRESSION, text, _MAX_PARTS):
            _check_nesting(path, str(expression))
        if '"merges"' in text and _PREFIX.search(text):
            for model in _values(_MODEL, text, _MAX_MODEL):
                _check_merges(path, model)
    except (ValueError, RecursionError) as error:
        raise BadArtifactError(f"{path} is damaged ({error}); {_AGAIN}") from error
    growth = 1
    for part in parts:
        growth *= _growth(path, part)
        if growth > _MAX_GROWTH:
            raise UnsupportedError(
                f"{path}: it may make a text more than {_MAX_GROWTH} times longer; {_OWN}"
            )
    if sum(map(_template_tokens, parts)) > _MAX_TEMPLATE_TOKENS:
        raise UnsupportedError(
            f"{path}: its post_processor adds more than {_MAX_TEMPLATE_TOKENS} tokens to a text; "
            f"{_OWN}"
        )
    for limit in _WORD_LIMIT.finditer(text):
        if len(limit[1]) > 18 or int(limit[1]) > _MAX_WORD_CHARACTERS:
            raise UnsupportedError(
                f"{path}: max_input_chars_per_word is {limit[1][:20]}; words of more than "
                f"{_MAX_WORD_CHARACTERS} characters would take too long, {_OWN}"
            )
    return data


def _plain(escape: re.Match[str]) -> str:
    """Return what an escape stands for, if it need not be one."""
    letter = chr(int(escape[1], 16)) if escape[1] else escape[0][1]
    needless = letter not in '"\\\x7f' if escape[1] else letter == "/"
    return letter if needless else escape[0]


def _values(key: re.Pattern[str], text: str, limit: int) -> Iterator[object]:
    """Yield the value behind each occurrence of a key, of ``limit`` characters together."""
    for found in key.finditer(text):
        value, length = _value(text, found.end(), limit)
        limit -= max(length, _LEAST_PARSED)
        yield value


def _value(text: str, start: int, limit: int) -> tuple[object, int]:
    """Parse the value that starts there, of at most so many characters, and count them."""
    size = _LEAST_PARSED
    while size < limit:
        try:
            return _DECODER.raw_decode(text[start : start + size])
        except ValueError:  # perhaps cut
            if start + size >= len(text):
                raise
        size *= 8
    try:
        return _DECODER.raw_decode(text[start : start + max(limit, 0)])
    except ValueError as error:
        if start + limit >= len(text):
            raise
        raise ValueError(f"a part is damaged, or takes more than {limit} characters") from error


def _objects(value: object) -> Iterator[dict[str, object]]:
    """Yield every JSON object inside a value, itself included."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict):
            yield inner
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)


def _check_nesting(path: Path, expression: str) -> None:
    """Require that a regular expression cannot nest deeply, wherever its groups end."""
    parts = _NESTING.finditer(expression)
    nesting = sum(_ABSENT_WEIGHT * bool(part[1]) + bool(part[2]) for part in parts)
    if nesting > _MAX_NESTING:
        raise UnsupportedError(
            f"{path}: an expression has {nesting} groups and repetitions; more than {_MAX_NESTING} "
            f"may overflow the stack, {_OWN}"
        )


def _check_merges(path: Path, model: object) -> None:
    """Require that the second part of each BPE merge begins with the prefix of such parts.

    The library drops as many bytes from it unseen, in the midst of a character if need be.
    """
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(pair, list) and len(pair) == 2:
            second = pair[1]
            if isinstance(second, str) and not second.startswith(prefix):
                raise BadArtifactError(
                    f"{path}: a merge does not begin its second part with the "
                    f"continuing_subword_prefix; it is damaged, {_AGAIN}"
                )


def _growth(path: Path, part: dict[str, object]) -> int:
    """Return how many times longer a normalizer or pre-tokenizer may make a text, in bytes."""
    content, pattern = part.get("content"), part.get("pattern")
    if isinstance(content, str) and pattern is not None:
        literal = pattern.get("String") if isinstance(pattern, dict) else pattern
        if isinstance(literal, str) and literal:
            return max(1, -(-_size(content) // _size(literal)))
        return _size(content) + 1  # an expression may match between any two letters
    if isinstance(prefix := part.get("prepend"), str):
        return _size(prefix) + 1
    if isinstance(charsmap := part.get("precompiled_charsmap"), str):
        return _longest_replacement(path, charsmap) + 1
    if str(part.get("type")) in _DOUBLING:
        return 2
    return max(_repetitions(part.get(key)) for key in _TEMPLATES)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _longest_replacement(path: Path, charsmap: str) -> int:
    """Return the bytes of the longest text in a precompiled map, after checking its table's size.

    Format of SentencePiece's ``precompiled_charsmap``: 4 bytes little-endian size of a table, the
    table, texts that end with NUL. The library reserves that size whatever the file holds.
    """
    try:
        content = base64.b64decode(charsmap, validate=True)
    except ValueError:
        content = b""
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or size > len(content) - 4:
        raise BadArtifactError(f"{path}: its precompiled_charsmap is damaged; {_AGAIN}")
    return max(map(len, content[4 + size :].split(b"\0")))


def _template_tokens(part: dict[str, object]) -> int:
    """Count the tokens that a template adds to a text and to a pair."""
    special = part.get("special_tokens")
    lengths = {
        name: len(token["ids"])
        for name, token in (special.items() if isinstance(special, dict) else ())
        if isinstance(token, dict) and isinstance(token.get("ids"), list)
    }
    names = chain(*(_pieces(part.get(key), "SpecialToken") for key in _TEMPLATES))
    return sum(1 + lengths.get(name, 0) for name in names)


def _repetitions(template: object) -> int:
    """Return how often a template repeats a text, at least 1."""
    return max(Counter(_pieces(template, "Sequence")).values(), default=1)


def _pieces(template: object, kind: str) -> Iterator[str]:
    """Yield the names of the pieces of one kind."""
    for piece in template if isinstance(template, list) else ():
        named = piece.get(kind) if isinstance(piece, dict) else None
        if isinstance(named, dict):
            yield str(named.get("id"))
