"""Ways to damage an input: JSON, safetensors, protobuf.

Each takes the input, another one of the same kind to take parts from, and the random source, which
alone decides the way; None leaves it to the fuzzer to change the bytes.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

Mutation: TypeAlias = Callable[[bytes, bytes, Random], bytes | None]
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Fields: TypeAlias = list[tuple[int, int, "int | bytes"]]  # number, wire type, value

_NUMBERS: Final = (
    *(0, 1, -1, 2, 7, 255, 2**15, 2**16, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**31), -(2**63), 10**12),
)
_NESTED: Final[list[Json]] = [[[]], {"": ""}]
_VALUES: Final[tuple[Json, ...]] = (
    *_NUMBERS,
    *(0.5, -1.5, 1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, [], {}),
    *_NESTED,
    *("", "a", "é", "日本", "😀", "\0", "\ud800", "a\nb", "..", "/etc/passwd", "x" * 3000),
    *("{}", "%s", "[CLS]", "##", "▁"),
)
_TEXTS: Final = (b"", b"a", b"\xff", b"../x", b"/etc/passwd", "é".encode(), b"x" * 3000)
_DEEPEST: Final = 24


def mutate_json(data: bytes, other: bytes, rng: Random) -> bytes | None:
    """Change, drop, rename, repeat or graft a value of a JSON document."""
    value, donor = _parse(data), _parse(other)
    if value is None or rng.random() < 0.04:
        return None
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed(value, donor, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.05:
        text = _with_a_key_twice(text, rng)
    return text.encode("utf-8", "surrogatepass")


def mutate_safetensors(data: bytes, other: bytes, rng: Random) -> bytes | None:
    """Change the header, mostly with a true length before it, or the body."""
    end, other_end = _header_end(data), _header_end(other)
    header = mutate_json(data[8:end], other[8:other_end], rng)
    if end is None or header is None:
        return None
    length = len(header)
    if rng.random() < 0.1:
        length = rng.choice((length + 1, length - 1, rng.choice(_NUMBERS))) % 2**64
    body = data[end:]
    if rng.random() < 0.1:
        body = rng.choice((body[:-1], body + b"\0", b"", body * 2))
    return length.to_bytes(8, "little") + header + body


def mutate_protobuf(data: bytes, other: bytes, rng: Random) -> bytes | None:
    """Change, drop, repeat or graft a field at any depth; lengths stay true."""
    if rng.random() < 0.1:
        return None
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = _changed_message(data, other, rng, 0)
    return data


def _parse(data: bytes) -> Json:
    try:
        value: Json = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


def _changed(value: Json, donor: Json, rng: Random) -> Json:
    """Return the value with one change somewhere inside."""
    stays = isinstance(value, dict | list) and bool(value) and rng.random() < 0.75
    if stays and isinstance(value, dict):
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {_other_name(name, key, rng): each for name, each in value.items()}
            case 2 if isinstance(donor, dict) and donor:
                name = rng.choice(list(donor))
                return value | {name: donor[name]}
        inner = donor.get(key) if isinstance(donor, dict) and rng.random() < 0.8 else donor
        return value | {key: _changed(value[key], inner, rng)}
    if stays and isinstance(value, list):
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + [value[at]] * rng.choice((2, 3, 100)) + value[at + 1 :]
            case 2:
                return [*value, rng.choice(_VALUES)]
        inner = rng.choice(donor) if isinstance(donor, list) and donor else donor
        return [*value[:at], _changed(value[at], inner, rng), *value[at + 1 :]]
    return _replaced(value, donor, rng)


def _replaced(value: Json, donor: Json, rng: Random) -> Json:
    """Return another value in the place of this one, in every second case one of its type."""
    match rng.randrange(20):
        case 0 | 1:
            return donor
        case 2:
            return [value]
        case 3:
            return {"type": value}
        case 4:
            nested = value
            for _ in range(rng.choice((3, 60, 200))):
                nested = [nested]
            return nested
        case 5 | 6 if isinstance(value, int | float):
            return value + rng.choice((-1, 1, 2, 1000))
        case 5 | 6 | 7 if isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            return value[:at] + rng.choice(("", "a", "é", "#", "😀", "\0")) + value[at + 1 :]
        case number if number < 15:
            alike = [each for each in _VALUES if type(each) is type(value)]
            return rng.choice(alike or _VALUES)
    return rng.choice(_VALUES)


def _other_name(name: str, key: str, rng: Random) -> str:
    return name if name != key else rng.choice((name + "s", "", name.upper(), "type", "a\0"))


def _with_a_key_twice(text: str, rng: Random) -> str:
    """Put a key with another value before one that is there."""
    places = [at for at, letter in enumerate(text) if letter == "{"]
    at = rng.choice(places or [0]) + 1
    key = text[at : text.find(":", at)] if text[at : at + 1] == '"' else '"type"'
    value = rng.choice(("null", "0", "{}", "[]", '"#"'))
    return f"{text[:at]}{key}: {value}, {text[at:]}"


def _header_end(data: bytes) -> int | None:
    end = 8 + int.from_bytes(data[:8], "little")
    return end if len(data) >= 8 and end <= len(data) else None


def _changed_message(data: bytes, other: bytes, rng: Random, depth: int) -> bytes:
    fields, donor = _read_fields(data), _read_fields(other)
    if not fields:
        return rng.choice(_TEXTS)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    if isinstance(value, bytes) and depth < _DEEPEST and rng.random() < 0.8:
        alike = [each for n, _, each in donor or () if n == number and isinstance(each, bytes)]
        graft = rng.choice(alike) if alike else b""
        inner = _changed_message(value, graft, rng, depth + 1)
        fields[at] = (number, kind, inner)
        return _write_fields(fields)
    match rng.randrange(7):
        case 0:
            del fields[at]
        case 1:
            fields[at:at] = [fields[at]] * rng.choice((1, 2, 40))
        case 2 if donor:
            fields.insert(at, rng.choice(donor))
        case 3:
            fields[at] = (rng.randrange(1, 40), kind, value)
        case 4:
            rng.shuffle(fields)
        case _:
            changed = rng.choice(_TEXTS) if isinstance(value, bytes) else rng.choice(_NUMBERS)
            fields[at] = (number, kind, changed)
    return _write_fields(fields)


def _read_fields(data: bytes) -> Fields | None:
    """Return the fields of a protobuf message; None for what is none."""
    fields: Fields = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _read_varint(data, at)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + width], "little"), at + width
        elif kind == 2:
            length, at = _read_varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            return None
        if not number or at > len(data):
            return None
        fields.append((number, kind, value))
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number and what follows it, which lies beyond the end if it is cut short."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, len(data) + 1
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
    return number, at


def _write_fields(fields: Fields) -> bytes:
    written = bytearray()
    for number, kind, value in fields:
        written += _varint(number << 3 | kind)
        if isinstance(value, bytes):
            written += _varint(len(value)) + value
        elif kind == 0:
            written += _varint(value % 2**64)
        else:
            width = 8 if kind == 1 else 4
            written += (value % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(written)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
