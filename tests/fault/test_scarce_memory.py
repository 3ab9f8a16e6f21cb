"""Memory that the system refuses is a status; what is loaded stays and goes on working."""

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from libsemantic.engine import tokenization
from libsemantic.engine.config import LoadOptions, RunOptions
from libsemantic.engine.errors import OutOfMemoryError, Status
from libsemantic.engine.registry import Registry

from ..abi.binding import MODELS
from ..abi.harness import compile_program, run
from .test_hostile_artifacts import filled, put

WORDS = "bert.embeddings.word_embeddings.weight"
TOKEN_BYTES = 4 << 20  # that a run of the hungry model takes for each token
ROWS = 250_000  # of 64 numbers


def test_what_does_not_fit_is_refused_and_nothing_else_is_lost(
    tmp_path: Path, copy_golden: Callable[[str, Mapping[str, object]], Path]
) -> None:
    program = tmp_path / "scarce_memory"
    compile_program(Path(__file__).with_name("scarce_memory.c"), program)
    large = copy_golden("bert-seq", {"config.json": {"vocab_size": ROWS}})
    weights = load_file(large / "model.safetensors")
    weights[WORDS] = np.zeros((ROWS, weights[WORDS].shape[1]), np.float32)
    save_file(weights, large / "model.safetensors")
    hungry = put(copy_golden("bert-seq", {}), filled(TOKEN_BYTES // 4))

    answer = run(program, MODELS / "bert-seq", large, hungry, env={})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        "load: OUT_OF_MEMORY the system refused the memory to load the model; free some",
        "run: OUT_OF_MEMORY the system refused the memory of a run; send shorter texts",
        "tokens: OUT_OF_MEMORY the system refused the memory to turn the texts into tokens, up to "
        "701 MiB; send less at a time, or raise the memory limit (ulimit -v) of the process",
    ]


THREADS = """
import resource, sys, threading
from pathlib import Path
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.session import first_run
from libsemantic.engine.tokenization import load_tokenizer

def refuse_threads():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (7 << 18)  # a thread takes 2 MiB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return
    raise SystemExit("a thread was started")

try:
    if sys.argv[2] == "before":
        refuse_threads()
    first_run()
    refuse_threads()
    encoded = load_tokenizer(Path(sys.argv[1])).encode(["math"] * 3, True)
    sys.stdout.write(str([each.token_count for each in encoded]))
except SemanticError as error:
    sys.stdout.write(f"{error.status.name} {error.message}")
"""
MANY_THREADS = """
import resource, sys
from pathlib import Path
from libsemantic.engine import REGISTRY, LoadOptions
from libsemantic.engine import session
from libsemantic.engine.errors import SemanticError

REGISTRY.load(sys.argv[1], LoadOptions(name="first", intra_op_threads=1))
if sys.argv[2] == "unasked":
    session.require_threads = int
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (768 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    REGISTRY.load(sys.argv[1], LoadOptions(name="second", intra_op_threads=int(sys.argv[3])))
except SemanticError as error:
    sys.stdout.write(f"{error.status.name} {error.message}")
REGISTRY.load(sys.argv[1], LoadOptions(name="third", intra_op_threads=1))
"""
REFUSED_THREADS = (
    "OUT_OF_MEMORY the system refused the threads that turn texts into tokens; let the process "
    "have more threads (ulimit -u, pids.max of its cgroup) or memory (ulimit -v) and start it anew"
)


@pytest.mark.parametrize(("when", "said"), [("after", "[3, 3, 3]"), ("before", REFUSED_THREADS)])
def test_the_threads_of_the_tokenizers_are_there_from_the_start(when: str, said: str) -> None:
    """They are tried for only once: what the system refuses later does no harm."""
    assert python(THREADS, MODELS / "bert-seq" / "tokenizer.json", when) == said


@pytest.mark.parametrize(
    ("asked", "threads", "said"),
    [("asked", 4, "the 3 threads"), ("asked", 2, "the 1 threads"), ("unasked", 2, "a thread")],
)
def test_threads_of_a_model_that_are_refused(asked: str, threads: int, said: str) -> None:
    """A stack takes half of the memory that there is, or all of it."""
    stack = 512 if threads > 2 else 1024
    answer = python(
        MANY_THREADS, MODELS / "bert-seq", asked, str(threads), limit=f"--stack={stack << 20}:"
    )
    assert answer == (
        f"OUT_OF_MEMORY the system refused {said} of the model; let the process have more threads "
        "(ulimit -u, pids.max of its cgroup) or memory (ulimit -v), or lower intra_op_threads"
    )


SCARCE_LOAD = """
import resource, sys
from pathlib import Path
from libsemantic.engine import REGISTRY, LoadOptions
from libsemantic.engine.config import Precision
from libsemantic.engine.errors import SemanticError

kept = REGISTRY.load(sys.argv[1], LoadOptions(name="first", precision=Precision.INT8))
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[3]) << 19)
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
said = []
try:
    REGISTRY.load(sys.argv[2], LoadOptions(name="second", precision=Precision(int(sys.argv[4]))))
except SemanticError as error:
    said.append(error.status.name)
resource.setrlimit(resource.RLIMIT_AS, before)
REGISTRY.classify(kept, ["math"])
sys.stdout.write(" ".join(said))
"""


@pytest.mark.parametrize("precision", [1, 4])
@pytest.mark.parametrize("half_mebibytes", [0, 2, 4, 8])
def test_a_load_for_which_there_is_no_memory(precision: int, half_mebibytes: int) -> None:
    """Protobuf would end the process, and a folder would be called unreadable."""
    folder = MODELS / "bert-seq", MODELS / "modernbert-token"
    said = python(SCARCE_LOAD, *folder, str(half_mebibytes), str(precision))
    assert said == "OUT_OF_MEMORY"


def test_a_thread_for_deadlines_that_is_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handle = registry.load(str(MODELS / "bert-seq"))
    timed = RunOptions(timeout_ms=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(OutOfMemoryError, match="the thread that keeps timeout_ms; let the"):
            registry.classify(handle, ["math"], timed)
        with pytest.raises(OutOfMemoryError, match="the thread that keeps timeout_ms; let the"):
            registry.load(str(MODELS / "bert-token"), LoadOptions(timeout_ms=10_000))
        assert registry.classify(handle, ["math"]).rows.status == (Status.OK,)
    assert registry.classify(handle, ["math"], timed).rows.status == (Status.OK,)


@pytest.mark.parametrize(
    ("texts", "least"),
    [(["math " * 100] * 64, 22_000_000), (["math"] * 64, 1_000_000), (["math"], 1_000_000)],
    ids=["long", "short", "one"],
)
def test_memory_is_asked_for_once_for_texts_of_any_length(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, texts: list[str], least: int
) -> None:
    """The tokenizers library ends the process where it gets none, so nothing is tried then."""
    handle = registry.load(str(MODELS / "bert-seq"))
    asked: list[int] = []

    def refused(count: int, _: str) -> None:
        asked.append(count)
        raise OutOfMemoryError("refused")

    monkeypatch.setattr(tokenization, "require_bytes", refused)
    with pytest.raises(OutOfMemoryError, match="refused"):
        registry.classify(handle, texts)
    assert len(asked) == 1
    assert asked[0] > least


def python(source: str, *arguments: Path | str, limit: str = "--core=0") -> str:
    """Return what a program writes that ends well under a limit, as prlimit takes it."""
    answer = subprocess.run(
        ["prlimit", limit, sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
