"""Derive the entities of the token golden from its reference logits.

usage: make_expected_entities.py > expected_entities.json

A plain reading of the rule, one token after the other, with nothing of the engine: ``B-`` and
``I-`` are stripped to the type; a token continues the entity of the token before it if the types
are equal and, for ``B-``, no character lies between; else it opens one. The score is the mean
probability of the type, ``B-`` and ``I-`` together. Blanks are trimmed, the end moves over the
combining marks that follow, offsets are UTF-8 bytes.
"""

import json
import math
import sys
import unicodedata
from pathlib import Path

MODEL = Path(__file__).parent / "models" / "bert-token"
FILES = ("expected.json", "expected_more.json")


def softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(value - highest) for value in logits]
    return [power / sum(powers) for power in powers]


def kind_of(label: str) -> str:
    return label.removeprefix("B-").removeprefix("I-") if label != "O" else ""


def entities(
    text: str, offsets: list[list[int]], logits: list[list[float]], labels: list[str]
) -> list[dict[str, object]]:
    kinds = [kind_of(label) for label in labels]
    runs: list[tuple[str, list[int]]] = []
    before, reach = "", 0
    # The first and the last token are the template's.
    for token in range(1, len(offsets) - 1):
        start, end = offsets[token]
        winner = max(range(len(labels)), key=logits[token].__getitem__)
        kind = kinds[winner]
        if kind:
            if kind == before and (not labels[winner].startswith("B-") or start == reach):
                runs[-1][1].append(token)
            else:
                runs.append((kind, [token]))
        before, reach = kind, end

    found: list[dict[str, object]] = []
    for kind, tokens in runs:
        start, end = offsets[tokens[0]][0], offsets[tokens[-1]][1]
        covered = text[start:end]
        start += len(covered) - len(covered.lstrip())
        end -= len(covered) - len(covered.rstrip())
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1
        shares = [
            sum(p for p, each in zip(softmax(logits[token]), kinds, strict=True) if each == kind)
            for token in tokens
        ]
        found.append(
            {
                "label": kind,
                "start": len(text[:start].encode()),
                "end": len(text[:end].encode()),
                "score": round(sum(shares) / len(shares), 6),
            }
        )
    return found


def main() -> None:
    table = json.loads((MODEL / "config.json").read_text())["id2label"]
    labels = [table[str(index)] for index in range(len(table))]
    content: dict[str, list[list[dict[str, object]]]] = {}
    for file in FILES:
        cases = json.loads((MODEL / file).read_text())["cases"]
        content[file] = [
            entities(case["text"], case["offsets_chars"], case["logits"], labels) for case in cases
        ]
    json.dump(content, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
