"""Memory that the system refuses is a status; what is loaded stays and goes on working."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
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
