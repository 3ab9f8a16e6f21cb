"""The texts of the benchmark: a fixed list of lengths, made exact for a model's tokenizer.

    python bench/texts.py MODEL_FOLDER > texts.json

Writes a list of objects: ``tokens`` counts the special tokens too, ``text`` is English prose of
few words, ``ids`` and ``type_ids`` are its tokens for programs without a tokenizer.
"""

import json
import sys
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

from tokenizers import Tokenizer

# As prompts are: many short ones, few long ones, 81 tokens on average. The long ones come early
# in the list, so that a run does not end with one caller waiting for a long text.
MIXED = (
    *(96, 12, 400, 24, 7, 160, 32, 5, 256, 16, 48, 320, 9, 64, 28),
    *(192, 3, 112, 40, 20, 128, 6, 80, 14, 224, 10, 56, 36, 18, 8),
)
SHORT = (3, 9, 5, 16, 12, 7, 14, 4, 10, 8)
FIXED = (8, 32, 128, 512)

_PROSE = (
    "please tell me how the old river was crossed when heavy rain fell on the green hills and "
    "why a small team of people went to the city to find work in the winter of that year"
)
_FILLER = "a"  # one token of its own in every tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its tokens."""

    tokens: int
    text: str
    ids: tuple[int, ...]
    type_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a model, and which of them serve what, as indices."""

    all: tuple[Text, ...]
    mixed: tuple[int, ...]
    short: tuple[int, ...]
    fixed: dict[int, int]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Open a model's tokenizer without truncation and padding."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def make_text(tokenizer: Tokenizer, tokens: int) -> Text:
    """Write a text of exactly so many tokens, the special ones included.

    Raises ValueError where the tokenizer splits the filler, so that a length cannot be met.
    """
    words: list[str] = []
    prose = _PROSE.split()
    # Begun elsewhere for each length, so that texts do not share their beginnings.
    for word in islice(cycle(prose), tokens % len(prose), None):
        if len(tokenizer.encode(" ".join([*words, word])).ids) > tokens:
            break
        words.append(word)
    while (missing := tokens - len(tokenizer.encode(" ".join(words)).ids)) > 0:
        words += [_FILLER] * missing
    encoding = tokenizer.encode(" ".join(words))
    if len(encoding.ids) != tokens:
        raise ValueError(f"no text of {tokens} tokens, but of {len(encoding.ids)}")
    return Text(tokens, " ".join(words), tuple(encoding.ids), tuple(encoding.type_ids))


def make_texts(tokenizer: Tokenizer) -> Texts:
    """Write all texts of the benchmark."""
    lengths = (*MIXED, *SHORT, *FIXED)
    texts = tuple(make_text(tokenizer, tokens) for tokens in lengths)
    places = range(len(lengths))
    return Texts(
        all=texts,
        mixed=tuple(places[: len(MIXED)]),
        short=tuple(places[len(MIXED) : -len(FIXED)]),
        fixed=dict(zip(FIXED, places[-len(FIXED) :], strict=True)),
    )


def as_json(texts: Texts) -> str:
    """Return what the programs that make load read."""
    return json.dumps([asdict(text) for text in texts.all])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: texts.py MODEL_FOLDER")
    sys.stdout.write(as_json(make_texts(read_tokenizer(Path(sys.argv[1])))) + "\n")
