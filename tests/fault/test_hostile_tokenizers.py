"""Tokenizer files made to end the process, fill the memory or take for ever.

Some did, before they were looked at first; so they are loaded in another process, with 1 GiB.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from libsemantic.engine.errors import SemanticError
from libsemantic.engine.registry import Registry

GOLDEN = Path(__file__).parents[1] / "golden" / "models"


def tokenizer(model: object = None, **parts: object) -> str:
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model or words} | parts)


def bpe(prefix: str | None, vocab: Sequence[str], *merges: object) -> dict[str, object]:
    return {
        "type": "BPE",
        "continuing_subword_prefix": prefix,
        "vocab": {token: number for number, token in enumerate(vocab)},
        "merges": list(merges),
    }


def normalizers(*parts: object) -> dict[str, object]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(parts)}}


def replacing(pattern: str, content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def template(single: Sequence[object], ids: Sequence[int] = (1,)) -> dict[str, object]:
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [text("A"), text("B")],
        "special_tokens": {"X": {"id": "X", "ids": ids, "tokens": ["b"] * len(ids)}},
    }


def text(name: str) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": 0}}


def splitting(expression: str) -> str:
    return tokenizer(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }
    )


FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
ADDED = [{"id": 2, "content": "aaaa", "normalized": True, **FLAGS}]
SPECIAL = {"SpecialToken": {"id": "X", "type_id": 0}}
SPLIT_LETTER = tokenizer(bpe("#", ["a", "é", "aé"], ["a", "é"]))
DOUBLING = normalizers(*[replacing("a", "aa")] * 40)
DEEP = "groups and repetitions; more than 200"
LONGER = "more than 1024 times longer"
TOKENIZERS: dict[str, tuple[str, str, str]] = {
    "a sound one": (tokenizer(), "", ""),
    "sound merges": (tokenizer(bpe("##", ["a", "##b", "ab"], ["a", "##b"])), "", ""),
    "sound merges, written as texts": (tokenizer(bpe("#", ["a", "#b", "ab"], "a #b")), "", ""),
    "a prefix that splits a letter": (SPLIT_LETTER, "BAD_ARTIFACT", "continuing_subword_prefix"),
    "the same, written as a text": (
        tokenizer(bpe("#", ["a", "é", "aé"], "a é")),
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "the same, its key hidden": (
        SPLIT_LETTER.replace("continuing_subword_prefix", "continuing_subword_prefi\\u0078"),
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "the same, its model hidden": (
        SPLIT_LETTER.replace('"model"', '"mod\\u0065l"'),
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "the same, before another model": (
        SPLIT_LETTER[:-1] + ', "model": ' + json.dumps(bpe(None, ["a"])) + "}",
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "the same, without a type": (
        SPLIT_LETTER.replace('"type": "BPE", ', ""),
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "a prefix longer than a token": (
        tokenizer(bpe("#" * 100, ["a", "b", "ab"], ["a", "b"])),
        "BAD_ARTIFACT",
        "continuing_subword_prefix",
    ),
    "a merge to no token": (
        tokenizer(bpe(None, ["a", "b"], ["a", "b"])),
        "BAD_ARTIFACT",
        "is damaged",
    ),
    "a map that announces 4 GB": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        "BAD_ARTIFACT",
        "precompiled_charsmap is damaged",
    ),
    "a map that is none": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "é"}),
        "BAD_ARTIFACT",
        "precompiled_charsmap is damaged",
    ),
    "a text doubled forty times": (tokenizer(**DOUBLING), "UNSUPPORTED", LONGER),
    "a token doubled forty times": (  # while it loads
        tokenizer(**DOUBLING, added_tokens=ADDED),
        "UNSUPPORTED",
        LONGER,
    ),
    "a text doubled without a type": (
        tokenizer(**DOUBLING).replace('"type": "Replace", ', ""),
        "UNSUPPORTED",
        LONGER,
    ),
    "a text doubled by an expression": (
        tokenizer(
            **normalizers(*[{"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}] * 9)
        ),
        "UNSUPPORTED",
        LONGER,
    ),
    "a long text put before": (
        tokenizer(**normalizers({"type": "Prepend", "prepend": "a" * 2000})),
        "UNSUPPORTED",
        LONGER,
    ),
    "bytes made letters forty times": (
        tokenizer(**normalizers(*[{"type": "ByteLevel"}] * 40)),
        "UNSUPPORTED",
        LONGER,
    ),
    "a template that doubles forty times": (
        tokenizer(
            post_processor={
                "type": "Sequence",
                "processors": [template([text("A"), text("A")])] * 40,
            }
        ),
        "UNSUPPORTED",
        LONGER,
    ),
    "a template of a million tokens": (
        tokenizer(post_processor=template([SPECIAL, text("A")] + [SPECIAL] * 999, [1] * 1000)),
        "UNSUPPORTED",
        "adds more than 1024 tokens",
    ),
    "a template with unknown tokens": (
        tokenizer(post_processor=template([SPECIAL, text("A")])).replace('"X": {', '"Y": {'),
        "BAD_ARTIFACT",
        "is damaged|failed on a text",
    ),
    "a template without the text": (
        tokenizer(post_processor=template([SPECIAL])),
        "BAD_ARTIFACT",
        "does not hold the text exactly once",
    ),
    "words of any length": (
        tokenizer(
            {
                "type": "WordPiece",
                "unk_token": "a",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 2**63,
                "vocab": {"a": 0},
            }
        ),
        "UNSUPPORTED",
        "max_input_chars_per_word is 9223372036854775808; words of more than 200",
    ),
    "pieces of no length": (
        tokenizer(pre_tokenizer={"type": "FixedLength", "length": 0}),
        "BAD_ARTIFACT",
        "failed on a text",
    ),
    "an id beyond 32 bits": (
        tokenizer(bpe(None, ["a"])).replace('"a": 0', '"a": 4294967296'),
        "BAD_ARTIFACT",
        "is damaged",
    ),
    "no tokens": (
        tokenizer({"type": "WordLevel", "vocab": {}, "unk_token": "a"}),
        "BAD_ARTIFACT",
        "failed on a text",
    ),
    "a pattern that is none": (
        splitting("("),
        "BAD_ARTIFACT",
        "is damaged",
    ),
    "a pattern that tries for ever": (
        splitting("(?:a|aa)+[bc]"),
        "BAD_ARTIFACT",
        "failed on a text",
    ),
    "a sound expression": (
        splitting(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+|\("
        ),
        "",
        "",
    ),
    "groups in groups": (splitting("(" * 300 + "x" + ")" * 300), "UNSUPPORTED", DEEP),
    "groups that seem to end": (splitting("(x[)]" * 201 + ")" * 201), "UNSUPPORTED", DEEP),
    "classes in classes": (splitting("[a" * 300 + "]" * 300), "UNSUPPORTED", DEEP),
    "repetitions of repetitions": (splitting("x" + "{1,2}" * 500), "UNSUPPORTED", DEEP),
    "options in options": (splitting("(?i)" * 500 + "x"), "UNSUPPORTED", DEEP),
    "absence of absence": (splitting("(?~" * 66 + "x" + ")" * 66), "UNSUPPORTED", DEEP),
    "groups in groups of a normalizer": (
        tokenizer(
            normalizer={
                "type": "Replace",
                "pattern": {"Regex": "(?:" * 300 + "x" + ")" * 300},
                "content": "a",
            }
        ),
        "UNSUPPORTED",
        DEEP,
    ),
    "groups in groups of a decoder, hidden": (
        tokenizer(
            decoder={
                "type": "Replace",
                "pattern": {"Regex": "(" * 300 + "x" + ")" * 300},
                "content": "a",
            }
        ).replace("Regex", "Re\\u0067ex"),
        "UNSUPPORTED",
        DEEP,
    ),
    "a normalizer of 9 MB": (
        tokenizer(normalizer={"x": [[]] * 2_300_000}),
        "BAD_ARTIFACT",
        "takes more than 8388608 characters",
    ),
    "9,000 normalizers in one": (
        tokenizer(x=[{"normalizer": []}] * 9_000),
        "BAD_ARTIFACT",
        "takes more than",
    ),
    "escapes that need not be": (
        tokenizer(bpe(None, ["a", "b", " ", "é", '"', "\\/", "/"]))
        .replace("/", "\\/")
        .replace('"a"', '"\\u0061"'),
        "",
        "",
    ),
    "another version": (tokenizer(version="9.9"), "BAD_ARTIFACT", "is damaged"),
    "a byte order mark": ("\ufeff" + tokenizer(), "BAD_ARTIFACT", "is damaged"),
    "blanks": (" " * 100, "BAD_ARTIFACT", "is damaged"),
}
LOADER = """
import json, resource, sys
from pathlib import Path
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.tokenization import load_tokenizer
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in map(Path, sys.argv[1:]):
    answer = ["", ""]
    try:
        loaded = load_tokenizer(path)
        loaded.encode(["a b ab é", "aé " * 9, "a" * 2000], True)
    except SemanticError as error:
        answer = [error.status.name, error.message]
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""


def test_hostile_tokenizers_are_refused_and_end_no_process(tmp_path: Path) -> None:
    paths = []
    for number, (content, _, _) in enumerate(TOKENIZERS.values()):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(content)
    process = subprocess.run(
        [sys.executable, "-c", LOADER, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    last = list(TOKENIZERS)[min(len(answers), len(TOKENIZERS) - 1)]
    assert process.returncode == 0, f"{last!r} ended the process: {process.stderr[-500:]}"
    for (name, (_, status, message)), (given, said) in zip(
        TOKENIZERS.items(), answers, strict=True
    ):
        assert given == status, f"{name}: {said}"
        assert re.search(message, said), f"{name}: {said}"
        assert said.isprintable(), name


def test_a_hostile_tokenizer_is_refused_by_its_load(
    registry: Registry, copy_golden: Callable[[str, Mapping[str, object]], Path]
) -> None:
    other = registry.load(str(GOLDEN / "bert-seq"))
    expected = registry.classify(other, ["math"]).logits
    for name in ("a prefix that splits a letter", "a text doubled forty times", "no tokens"):
        content, status, message = TOKENIZERS[name]
        with pytest.raises(SemanticError, match=message) as caught:
            registry.load(str(copy_golden("bert-seq", {"tokenizer.json": content})))
        assert caught.value.status.name == status
        assert registry.list_models().count == 1
        np.testing.assert_array_equal(registry.classify(other, ["math"]).logits, expected)
