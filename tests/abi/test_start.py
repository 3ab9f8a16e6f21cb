"""Before the start, the start, and the end of a process: programs of their own."""

import os
import re
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .binding import MODELS
from .harness import Programs, clean_environment, run

MODEL = MODELS / "bert-seq"
ANSWER = "biology 0.5143\n"


def test_before_the_start_nothing_is_started(programs: Programs) -> None:
    answer = run(programs["before_start"])
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_an_empty_environment_will_do(programs: Programs) -> None:
    answer = run(programs["host"], MODEL, env={})
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, ANSWER, "")


def test_the_hosts_python_settings_and_folder_are_ignored(
    programs: Programs, tmp_path: Path
) -> None:
    trap = "import sys\nsys.stdout.write('trapped')\nraise SystemExit(5)\n"
    for name in ("numpy", "onnxruntime", "encodings", "sitecustomize", "startup", "cffi"):
        (tmp_path / f"{name}.py").write_text(trap)
    model = tmp_path / "modèle 模型"
    model.symlink_to(MODEL)
    hostile = clean_environment(
        PYTHONHOME="/nonexistent",
        PYTHONPATH=str(tmp_path),
        PYTHONSTARTUP=str(tmp_path / "startup.py"),
        PYTHONINSPECT="1",
        PYTHONVERBOSE="2",
        PYTHONWARNINGS="error",
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
        PYTHONPROFILEIMPORTTIME="1",
        LANG="C",
        LC_ALL="C",
    )
    answer = run(programs["host"], model, env=hostile, cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, ANSWER, "")


def test_nothing_is_written(programs: Programs, tmp_path: Path) -> None:
    """Into no folder that programs write to by themselves; a file that grew would end it."""
    places = [tmp_path / name for name in ("home", "cache", "temporary", "work")]
    for place in places:
        place.mkdir()
    home, cache, temporary, work = map(str, places)
    environment = {"HOME": home, "XDG_CACHE_HOME": cache, "TMPDIR": temporary}
    command = ("prlimit", "--fsize=0", programs["host"], MODEL)
    answer = run(*command, env=environment, cwd=Path(work))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, ANSWER, "")
    assert [path for place in places for path in place.rglob("*")] == []


def test_an_environment_by_option_and_by_variable(programs: Programs) -> None:
    for option, environment in (
        ((sys.prefix,), {}),
        ((), {"LIBSEMANTIC_PYTHON": sys.prefix}),
        ((sys.prefix,), {"LIBSEMANTIC_PYTHON": "/nowhere"}),  # the option is asked first
        (("",), {"LIBSEMANTIC_PYTHON": ""}),  # empty is none
    ):
        answer = run(programs["host"], MODEL, *option, env=environment)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, ANSWER, "")


def test_a_wrong_environment_is_named_now_and_later(programs: Programs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python3").symlink_to(sys.executable)
    for option, environment, told in (
        (("/nowhere",), {}, "/nowhere (init option) has no bin/python3"),
        ((), {"LIBSEMANTIC_PYTHON": "/nowhere"}, "/nowhere (LIBSEMANTIC_PYTHON) has no bin/python"),
        ((str(other),), {}, f"{other} (init option) is for another Python version"),
    ):
        answer = run(programs["host"], MODEL, *option, env=environment)
        assert answer.returncode == 3
        assert answer.stderr == ""
        first, second = answer.stdout.splitlines()
        assert first == second
        version = "{}.{}".format(*sys.version_info)
        assert first.startswith(f"INTERPRETER no Python {version} environment found, tried: {told}")
        assert "set LIBSEMANTIC_PYTHON or the environment option" in first


def test_an_environment_without_our_packages(programs: Programs, tmp_path: Path) -> None:
    """It starts, and fails where it binds: never a zero that looks like success."""
    bare = tmp_path / "bare"
    version = "python{}.{}".format(*sys.version_info)
    (bare / "bin").mkdir(parents=True)
    (bare / "lib" / version / "site-packages").mkdir(parents=True)
    (bare / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    home = Path(sys.base_prefix, "bin")
    (bare / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    answer = run(programs["host"], MODEL, bare, env={})
    assert answer.returncode == 3
    first, second = answer.stdout.splitlines()
    assert first == second
    assert first.startswith("INTERPRETER ")
    assert str(bare) in first


def environment_of_links(folder: Path, missing: str = "") -> Path:
    """Make an environment of this one's packages but for one; return the folder they lie in."""
    packages = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    home = Path(sys.base_prefix, "bin")
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        if item.name != missing:
            (packages / item.name).symlink_to(item)
    return packages


@pytest.mark.parametrize("missing", ["numpy", "onnxruntime", "tokenizers", "libsemantic"])
def test_an_incomplete_environment_is_named(
    programs: Programs, tmp_path: Path, missing: str
) -> None:
    partial = tmp_path / "partial"
    environment_of_links(partial, missing)
    answer = run(programs["host"], MODEL, partial, env={})
    assert answer.returncode == 3
    first, second = answer.stdout.splitlines()
    assert first == second
    assert first.startswith(f"INTERPRETER the Python side cannot start in {partial}: ")
    assert f"No module named '{missing}" in first
    assert "the environment is incomplete, run make build, or make install, again" in first


def test_two_builds_of_onnx_runtime_over_one_another_are_named(
    programs: Programs, tmp_path: Path
) -> None:
    packages = environment_of_links(tmp_path)
    own = next(iter(packages.glob("onnxruntime*.dist-info"))).name.partition("-")[0]
    other = "onnxruntime-openvino" if own != "onnxruntime_openvino" else "onnxruntime-gpu"
    described = packages / f"{other.replace('-', '_')}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {other}\nVersion: 1.0\n")
    answer = run(programs["host"], MODEL, tmp_path, env={})
    assert answer.returncode == 3
    first, second = answer.stdout.splitlines()
    assert first == second
    assert first.startswith(f"INTERPRETER the Python side cannot start in {tmp_path}: ")
    both = " and ".join(sorted((own.replace("_", "-"), other)))
    assert f"holds {both}, which install the same module over one another" in first


@pytest.mark.parametrize("path", ["/two\nlines", b"/caf\xe9", "/a\x7fb"])
def test_a_path_that_cannot_stand_in_a_message(programs: Programs, path: str | bytes) -> None:
    answer = run(programs["host"], MODEL, os.fsdecode(path), env={})
    first, second = answer.stdout.splitlines()
    assert first == second
    assert first == (
        "INTERPRETER the path of the Python environment (init option) is not UTF-8 or has control "
        "characters; give another"
    )


@pytest.mark.parametrize("padding", range(3))
def test_a_long_path_is_cut_at_a_character(programs: Programs, padding: int) -> None:
    answer = run(programs["host"], MODEL, "/" + "x" * padding + "数" * 800, env={})
    first, second = answer.stdout.splitlines()  # which were read as UTF-8
    assert first == second
    assert len(first.encode()) > 600


@pytest.mark.parametrize("mebibytes", [60, 140, 220, 300])
def test_a_start_that_does_not_fit_is_refused(programs: Programs, mebibytes: int) -> None:
    answer = run("prlimit", f"--as={mebibytes << 20}", programs["host"], MODEL, env={})
    assert (answer.returncode, answer.stderr) == (3, "")
    first, second = answer.stdout.splitlines()
    assert first == second
    assert re.fullmatch(
        r"OUT_OF_MEMORY the system refused \d+ MiB of address space to start Python; .*", first
    )


def test_a_wrong_struct_size_starts_nothing(programs: Programs) -> None:
    answer = run(programs["init_sizes"])
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_callers_that_are_cancelled(programs: Programs) -> None:
    answer = run(programs["cancelled"], MODEL)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("attempt", range(3))
def test_64_first_callers_at_once(programs: Programs, attempt: int) -> None:
    answer = run(programs["first_callers"], MODEL, env={})
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", ""), attempt


@pytest.mark.parametrize("way", ["return", "exit"])
def test_leaving_with_calls_in_flight(programs: Programs, way: str) -> None:
    """20 processes with 8 callers each, two at a time: the host's code, within 2 seconds."""
    program = programs["ending"]

    def leave(_: int) -> tuple[int, str, bool]:
        answer = run(program, MODEL, way, env={})
        left_at, said = answer.stdout.split("\n", 1)  # of the clock that time.monotonic reads
        assert said == "the end\n"
        return answer.returncode, answer.stderr, time.monotonic() - float(left_at) < 2.0

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(leave, range(20)))
    assert set(answers) == {(7, "", True)}


def test_a_fork_without_exec(programs: Programs) -> None:
    answer = run(programs["forked"], MODEL)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_the_log_callback(programs: Programs) -> None:
    answer = run(programs["log_lines"], MODEL)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert re.fullmatch(r"libsemantic: model printed loaded from .*\n", answer.stderr)


def test_signals_stay_the_hosts(programs: Programs) -> None:
    answer = run(programs["signals"], MODEL)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
