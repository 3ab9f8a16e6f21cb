"""Ask the C library where a model runs, in the environment of this Python."""

import os
import subprocess
import sys
from pathlib import Path

from tests.abi.harness import clean_environment, compile_program

HERE = Path(__file__).parent


def where(folder: Path, model: Path, device: str) -> list[str]:
    """Compile where.c into ``folder``, run it, return its lines; nothing else may be printed."""
    program = folder / "where"
    compile_program(HERE / "where.c", program)
    environment = clean_environment(LIBSEMANTIC_PYTHON=sys.prefix)
    for name in ("LD_LIBRARY_PATH", "PATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    done = subprocess.run(
        [program, model, device],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    # The log has what was passed over, and nothing that a provider printed.
    assert done.stderr.splitlines() == [f"libsemantic: model {model.name}: {x}" for x in lines[1:]]
    return lines
