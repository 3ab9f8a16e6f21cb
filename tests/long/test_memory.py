"""Memory over long work, over load and unload, over crowds; and the C code under checkers."""

import gc
import shutil
import subprocess
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY
from libsemantic.ffi.codecs import CData

from ..abi.binding import MODELS, ROOT, Library
from ..abi.harness import clean_environment, compile_program
from .memory_checker import checked_by, own_faults
from .size import sized

HERE = Path(__file__).parent
LINES = 100  # what steady.c prints
OWN_SOURCES = {path.name for path in (ROOT / "ffi").glob("*.c")} | {"results.c", "_libsemantic.c"}
MEGABYTE = 1024  # in kilobytes


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("programs") / "steady"
    compile_program(HERE / "steady.c", program)
    return program


def numbers(program: Path, work: str, count: int) -> list[list[int]]:
    """Run a kind of work in a process of its own; return the numbers it prints, by line."""
    answer = subprocess.run(
        [str(program), work, str(count), str(MODELS)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    return [[int(number) for number in line.split()] for line in answer.stdout.splitlines()]


def spare(kilobytes: float, share: float, least: int) -> float:
    return max(kilobytes * share, least)


def check_steady(resident: list[int]) -> None:
    """Compare the mean of the last tenth with that of the second tenth."""
    assert len(resident) == LINES
    tenth = LINES // 10
    early = sum(resident[tenth : 2 * tenth]) / tenth
    late = sum(resident[-tenth:]) / tenth
    print(f"second tenth {early:.0f} kB, last tenth {late:.0f} kB, most {max(resident)} kB")
    assert late <= early + spare(early, 0.01, 4 * MEGABYTE)


def test_memory_of_calls_of_mixed_lengths(steady: Path) -> None:
    lines = numbers(steady, "calls", sized(100_000, least=2000))
    check_steady([resident for (resident,) in lines])


def test_memory_of_calls_that_fail(steady: Path) -> None:
    lines = numbers(steady, "failures", sized(1_000_000, least=20_000))
    check_steady([resident for (resident,) in lines])


@pytest.mark.parametrize("kind", ["loads", "adapters"])
def test_memory_of_loading_and_unloading(steady: Path, kind: str) -> None:
    cycles = sized(50, least=10)
    resident = [each for (each,) in numbers(steady, kind, cycles)]
    print(f"cycle 5: {resident[4]} kB, then at most {max(resident[5:])} kB")
    assert len(resident) == cycles
    assert max(resident[5:]) <= resident[4] + spare(resident[4], 0.02, 8 * MEGABYTE)


def test_threads_and_memory_of_crowds(steady: Path) -> None:
    """A crowd leaves nothing behind that the next one does not use.

    What glibc keeps is given back before memory is read; what is left goes up and down by 6 MB,
    as the callers happen to meet. 8 MB are 4 kB for each of 2,000 callers.
    """
    waves = numbers(steady, "crowd", sized(2000, least=50))
    print(f"threads and kB after each wave: {waves}")
    assert len({threads for threads, _ in waves}) == 1
    first, *later = [resident for _, resident in waves]
    assert min(later) <= first + 8 * MEGABYTE


# ---- what a failed call leaves


@pytest.fixture
def library() -> Iterator[Library]:
    opened = Library()
    yield opened
    assert opened.lib.semantic_cleanup(10_000, opened.ffi.NULL) == Status.OK


FAILURES: Mapping[str, tuple[str, Mapping[str, int], tuple[bytes, int], Status]] = {
    "another task": ("semantic_embed", {}, (b"math", 1), Status.UNSUPPORTED),
    "a wrong option": ("semantic_classify", {"layer": 3}, (b"math", 1), Status.INVALID_ARGUMENT),
    "no UTF-8": ("semantic_classify", {}, (b"\xff", 1), Status.INVALID_ARGUMENT),
    "too long": ("semantic_classify", {"long_text": 1}, (b"math " * 200, 1), Status.TOO_LONG),
    "too late": ("semantic_classify", {"timeout_ms": 1}, (b"math " * 90, 2000), Status.DEADLINE),
    "too many rows": ("semantic_classify", {}, (b"a", 65_537), Status.INVALID_ARGUMENT),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_call_keeps_nothing_alive(library: Library, failure: str) -> None:
    """Nothing may wait for a garbage collection: an idle process has none."""
    function, options, (text, rows), expected = FAILURES[failure]
    loading = library.good_arguments("semantic_load_model", 0, "")
    assert library.call("semantic_load_model", loading) == Status.OK
    model: CData = loading["model"].id
    loaded = REGISTRY._entries[model].model
    assert loaded is not None
    batcher = weakref.ref(loaded.batcher)
    del loaded
    arguments = library.good_arguments(function, model, "")
    arguments["options"] = library.options("semantic_run_options", options)
    arguments |= {"texts": library.texts(*[text] * rows), "n": rows}
    gc.collect()
    gc.disable()
    try:
        assert library.call(function, arguments) == expected
        unloading = library.good_arguments("semantic_unload_model", model, "")
        assert library.call("semantic_unload_model", unloading) == Status.OK
        assert batcher() is None, "the model is unloaded, but there"
    finally:
        gc.enable()


# ---- the C code


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_c_parts_under_a_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "parts"
    sources = [
        HERE / "parts.c",
        *(ROOT / "ffi" / f"{part}.c" for part in ("memory", "status", "log")),
    ]
    compiled = subprocess.run(
        [
            *("cc", "-g", "-O1", "-std=gnu11", "-pthread", "-Wall", "-Wextra", "-Werror"),
            *(f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"),
            *("-I", str(ROOT / "include"), *map(str, sources), "-o", str(program)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in compiled.stderr:
        pytest.skip(f"the compiler comes without its {sanitizer} sanitizer")
    assert (compiled.returncode, compiled.stderr) == (0, "")
    answer = subprocess.run(
        [str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    if "unexpected memory mapping" in answer.stderr:
        pytest.skip("this kernel lays out memory in a way that the sanitizer cannot work with")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_every_result_under_valgrind(tmp_path: Path) -> None:
    """The program does two things wrong on purpose; nothing else may be found in our code."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (Debian: apt-get install valgrind)")
    program, report = tmp_path / "results", tmp_path / "report.xml"
    compile_program(HERE / "results.c", program)
    answer = subprocess.run(
        [
            *checked_by(report),
            *(str(program), str(MODELS)),
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found = set()
    for kind, frames in own_faults(report, OWN_SOURCES):
        of_program = [frame for frame in frames if frame.findtext("file") == "results.c"]
        found.add((kind, (of_program or frames)[0].findtext("fn")))
    assert found == {
        ("InvalidRead", "read_too_far_on_purpose"),
        ("Leak_DefinitelyLost", "forget_on_purpose"),
    }
