"""Parse JSON that says one thing only."""

import json


def parse_json(text: str) -> object:
    """Parse JSON.

    Raises ValueError where it is damaged, nested too deeply, says two things for one key, or
    holds a lone surrogate, which could not leave the library as UTF-8.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_unambiguous)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return value


def _unambiguous(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; a key that stands twice with different values is refused."""
    result = dict(pairs)
    if len(result) < len(pairs):
        for key, value in pairs:
            if result[key] != value:
                raise ValueError(f"key {key!r} stands twice with different values")
    return result
