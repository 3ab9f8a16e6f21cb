from collections.abc import Iterator

import pytest

from libsemantic.engine.errors import Status

from .binding import Library
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
