"""The library without a network and on a file system that cannot be written."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..abi.binding import MODELS, ROOT
from ..abi.harness import HERE as ABI
from ..abi.harness import compile_program, run

NAMESPACE = ("unshare", "--map-root-user")


def namespace(*options: str) -> tuple[str, ...]:
    """Return the command that gives a program namespaces of its own; skip where it may not."""
    command = (*NAMESPACE, *options)
    if shutil.which("unshare") is None or run(*command, "true").returncode != 0:
        pytest.skip(f"{' '.join(command)} is not allowed here")
    return command


def test_everything_works_without_a_network() -> None:
    """In a network namespace without interfaces, not even the loopback."""
    command = namespace("--net")
    assert "state UP" not in run(*command, "cat", "/proc/net/dev").stdout
    answer = subprocess.run(
        [
            *(*command, sys.executable, "-m", "pytest", "-q"),
            *("tests/abi", "tests/golden", "tests/fault/test_bad_artifacts.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-3000:]


def test_a_file_system_that_cannot_be_written(tmp_path: Path) -> None:
    command = namespace("--mount")
    program = tmp_path / "host"
    compile_program(ABI / "host.c", program)
    script = (
        'mount --make-rprivate / && mount --rbind / "$1" && mount -o remount,bind,ro "$1" '
        '&& cd "$1" && ! touch "$1$2" 2>/dev/null && exec chroot "$1" "$2" "$3"'
    )
    root = tmp_path / "root"
    root.mkdir()
    answer = run(*command, "sh", "-c", script, "sh", root, program, MODELS / "bert-seq", env={})
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "biology 0.5143\n", "")
