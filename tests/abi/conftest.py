import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libsemantic.engine.errors import Status

from .binding import MODELS, Library
from .candle import Candle, compile_driver
from .harness import Models, Programs


@pytest.fixture(scope="session")
def library() -> Library:
    """The library, which adopts this interpreter with its first call."""
    return Library()


@pytest.fixture
def models(library: Library) -> Iterator[Models]:
    """Models that are unloaded, and a runtime that is cleaned up, after the test.

    The test must have freed all its results.
    """
    yield Models(library)
    # The statistics that are asked for count among the results until they are freed.
    stats = library.good_arguments("semantic_get_stats", 0, "")
    assert library.result_of("semantic_get_stats", stats)["results_unfreed"] == 0
    error = library.error()
    assert library.lib.semantic_cleanup(10_000, error) == Status.OK, library.message(error)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver of the candle functions, as a program."""
    return compile_driver(tmp_path_factory.mktemp("candle") / "candle_driver")


@pytest.fixture(scope="session")
def driver_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a shared object."""
    target = tmp_path_factory.mktemp("candle") / "candle_driver.so"
    return compile_driver(target, "-shared", "-fPIC")


@pytest.fixture(scope="session")
def candle_library(library: Library, driver_object: Path) -> Candle:
    """The candle functions in this process, on the same registry as ``library``."""
    assert library is not None
    return Candle(driver_object)


@pytest.fixture
def candle(candle_library: Candle) -> Iterator[Candle]:
    """Empty slots; after the test all answers must be freed, and the slots are emptied."""
    # What a test before left shall fail that one alone.
    candle_library.script("release", "cleanup_dual_path_memory", "cleanup 10000")
    before = candle_library.stats()
    assert before["models"] == []
    yield candle_library
    assert candle_library.stats()["unfreed"] == before["unfreed"]


@pytest.fixture(scope="session")
def full_length(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a golden model whose files declare as much length as it has positions.

    The references were cut there; by themselves the tiny folders declare less.
    """
    root = tmp_path_factory.mktemp("full length")

    def at_full_length(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            folder.mkdir()
            for path in (MODELS / name).iterdir():
                if path.name not in ("tokenizer_config.json", "sentence_bert_config.json"):
                    (folder / path.name).symlink_to(path)
            for file, key in (
                ("tokenizer_config.json", "model_max_length"),
                ("sentence_bert_config.json", "max_seq_length"),
            ):
                if (MODELS / name / file).exists():
                    content = json.loads((MODELS / name / file).read_text()) | {key: 512}
                    (folder / file).write_text(json.dumps(content))
        return folder

    return at_full_length
