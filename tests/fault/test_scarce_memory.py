"""Memory that the system refuses is a status; what is loaded stays and goes on working."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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
        "700 MiB; send less at a time, or raise the memory limit (ulimit -v) of the process",
    ]


THREADS = """
import resource, sys, threading
from pathlib import Path
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.session import first_run
from libsemantic.engine.tokenization import load_tokenizer

def refuse_threads():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 20)
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
REFUSED_THREADS = (
    "OUT_OF_MEMORY the system refused the threads that turn texts into tokens; let the process "
    "have more threads (ulimit -u, pids.max of its cgroup) or memory (ulimit -v) and start it anew"
)


@pytest.mark.parametrize(("when", "said"), [("after", "[3, 3, 3]"), ("before", REFUSED_THREADS)])
def test_the_threads_of_the_tokenizers_are_there_from_the_start(when: str, said: str) -> None:
    """They are tried for only once: what the system refuses later does no harm."""
    path = MODELS / "bert-seq" / "tokenizer.json"
    answer = subprocess.run(
        [sys.executable, "-c", THREADS, path, when],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, said), answer.stderr
