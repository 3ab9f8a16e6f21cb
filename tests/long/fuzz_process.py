"""The process that fuzzes one target: python -m tests.long.fuzz_process TARGET [FLAG | INPUT]...

Its standard outputs are one file that can be read. ``fuzz`` starts it.
"""

import os
import resource
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import atheris

with atheris.instrument_imports(include=["libsemantic"]):
    from libsemantic.engine.errors import InternalError, SemanticError

    from .fuzz_calls import SECRET
    from .fuzz_targets import CODE, TARGETS, Target

MEMORY_BYTES: Final = 2 << 30  # at once; libFuzzer looks once a second only
LONGEST_MESSAGE: Final = 6000  # a path may have 4096 bytes
OUTPUT: Final = 1  # both outputs, in fact


def read(target: Target, data: bytes) -> None:
    """Read one input; raise what breaks a promise."""
    printed = os.fstat(OUTPUT).st_size
    with tempfile.TemporaryDirectory() as place:
        message = _message(target, data, Path(place))
    message.encode()
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters"
    assert "\n" not in message, f"a message of several lines: {message!r}"
    assert SECRET not in message, f"a message with the text: {message!r}"
    size = os.fstat(OUTPUT).st_size - printed
    assert SECRET.encode() not in os.pread(OUTPUT, max(size, 0), printed), "a text was printed"


def _message(target: Target, data: bytes, folder: Path) -> str:
    """Return what the reader said, "" if it took the input."""
    try:
        target.read(data, folder)
    except InternalError:
        raise
    except SemanticError as error:
        message = error.message
    else:
        return ""
    assert message, "an empty message"
    return message


def change(target: Target, data: bytes, other: bytes, max_size: int, rng: Random) -> bytes:
    """Return the input changed, with parts of another one."""
    changed = target.mutate(data, other, rng)
    return atheris.Mutate(data, max_size) if changed is None else changed[:max_size]


def main() -> None:
    """Fuzz until the flags say to stop; what breaks a promise ends the process."""
    _, name, *flags = sys.argv
    target = {**TARGETS, "code": CODE}[name]
    first = target.first()
    files = [Path(tempfile.gettempdir()) / f"first-{number}" for number in range(len(first))]
    for file, data in zip(files, first, strict=True):
        file.write_bytes(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        return change(target, data, rng.choice(first), max_size, rng)

    def cross(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
        return change(target, data, other, max_size, Random(seed))

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    atheris.Setup(
        [name, "-seed_inputs=" + ",".join(str(file) for file in files), *flags],
        lambda data: read(target, data),
        custom_mutator=mutate,
        custom_crossover=cross,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    # What is imported later too, such as by the library when it starts.
    with atheris.instrument_imports(include=["libsemantic"]):
        main()
