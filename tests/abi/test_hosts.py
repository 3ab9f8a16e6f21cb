"""The hosts a library can find itself in: a C program without it, and Pythons of all sorts."""

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .binding import BUILD, LIBRARY, MODELS, ROOT
from .harness import HERE, clean_environment, compile_program, run


def test_a_program_that_opens_the_library_with_local_scope(tmp_path: Path) -> None:
    program = tmp_path / "dlopen_host"
    include = f"-I{BUILD / 'include'}"
    compile_program(HERE / "dlopen_host.c", program, include, "-ldl")
    answer = run(program, LIBRARY, MODELS / "bert-seq", env={})
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "biology 0.5143\n", "")


def test_a_python_of_the_same_environment_is_adopted() -> None:
    answer = run(sys.executable, HERE / "ctypes_host.py", LIBRARY)
    assert (answer.stdout, answer.stderr) == ("OK \nOK \nFalse\n", "")


def test_a_python_of_another_environment_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    venv.create(other, symlinks=True, with_pip=False)
    answer = run(other / "bin" / "python", HERE / "ctypes_host.py", LIBRARY)
    first, second, no_result = answer.stdout.splitlines()
    assert first == second
    assert first.startswith("INTERPRETER this process runs the Python environment ")
    assert str(other.resolve()) in first
    assert str((BUILD / "env").resolve()) in first
    assert no_result == "True"
    assert answer.stderr == ""


def other_pythons() -> list[Path]:
    """Return Pythons of other versions: on the path, and those of pyenv, which are behind it."""
    ours = "python{}.{}".format(*sys.version_info)
    names = [f"python3.{minor}" for minor in range(8, 16) if f"python3.{minor}" != ours]
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")), Path("/opt")]
    found = [Path(path) for name in names if (path := shutil.which(name))]
    found += [
        path for name in names for root in roots for path in root.glob(f"versions/*/bin/{name}")
    ]
    return [path for path in found if runs(path)]


def runs(python: Path) -> bool:
    answer = subprocess.run([python, "-c", "import ctypes"], capture_output=True, check=False)
    return answer.returncode == 0


def test_a_python_of_another_version_is_refused() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no Python of another version on this machine")
    for python in pythons:
        said = run(python, "-c", "import platform; print(platform.python_version())").stdout
        answer = run(python, HERE / "ctypes_host.py", LIBRARY)
        assert answer.stderr == ""
        first, second, no_result = answer.stdout.splitlines()
        assert first == second
        built_for = "{}.{}".format(*sys.version_info)
        assert first.startswith(
            f"INTERPRETER this process runs Python {said.strip()}, the library was built for "
            f"{built_for}; use"
        )
        assert no_result == "True"


@pytest.mark.parametrize(("mode", "times"), [("busy", 6), ("stuck", 2)])
def test_a_python_that_ends_with_calls_in_flight(mode: str, times: int) -> None:
    """Its threads are inside C when the interpreter ends; a fork of it ends as well."""

    def leave(_: int) -> tuple[int, str, str, bool]:
        answer = run(sys.executable, "-m", "tests.abi.leaving_host", mode, cwd=ROOT)
        child, left_at = answer.stdout.split()
        soon = time.monotonic() - float(left_at) < 3.0
        return answer.returncode, child, answer.stderr, soon

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(leave, range(times))) == {(7, "41", "", True)}


PROGRAMS = (["first"], ["first.py"], ["first_ctypes.py", str(LIBRARY)])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_the_examples(program: list[str], tmp_path: Path) -> None:
    """Each says the same of the same model, tells an error in one line, and how it is used."""
    command = [sys.executable, str(ROOT / "examples" / program[0]), *program[1:]]
    if program == ["first"]:
        compile_program(ROOT / "examples" / "first.c", tmp_path / "first")
        command = [str(tmp_path / "first")]
    answer = run(*command, MODELS / "bert-token")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert len(lines) == 11
    assert lines[0] == "I                    EMAIL        0.54  bytes 0 to 1"
    assert lines[9] == "ah@example           PERSON       0.90  bytes 31 to 41"
    for wrong, told in (
        ("/nowhere", "'/nowhere' cannot be opened"),
        (str(MODELS / "bert-seq"), "needs TOKEN_CLASSIFICATION"),
    ):
        answer = run(*command, wrong)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert re.fullmatch(rf".*{told}.*\n", answer.stderr)
    answer = run(*command)
    assert answer.returncode in (1, 2)
    assert answer.stderr.startswith("usage: first")


def test_the_examples_are_short() -> None:
    sizes = {
        path.name: len(path.read_text().splitlines()) for path in (ROOT / "examples").iterdir()
    }
    assert sizes["first.c"] < 60
    assert sizes["first.py"] < 60
    assert clean_environment().keys() & {"PYTHONPATH", "LIBSEMANTIC_PYTHON"} == set()
