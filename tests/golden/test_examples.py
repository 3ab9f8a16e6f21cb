"""The Go programs of the README, built and run on the real models."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "build" / "models"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    for name in ("first", "demo"):
        target = str(folder / name)
        command = ["tools/go.sh", "build", "-buildvcs=false", "-o", target, f"./cmd/{name}"]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd="/", env={}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_first_program_finds_the_entities(programs: Path) -> None:
    done = run(programs / "first", MODELS / "rampart")
    assert (done.returncode, done.stderr) == (0, "")
    found = [(*line.split()[:2], line.split()[-3:]) for line in done.stdout.splitlines()]
    assert found == [
        ("Sarah", "GIVEN_NAME", ["5", "to", "10"]),
        ("Connor", "SURNAME", ["11", "to", "17"]),
        ("sarah@example.org", "EMAIL", ["28", "to", "45"]),
    ]


def test_the_first_program_says_what_is_wrong(programs: Path) -> None:
    done = run(programs / "first", MODELS / "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_the_demo_tells_the_whole_story(programs: Path) -> None:
    done = run(programs / "demo", MODELS / "rampart", MODELS / "minilm")
    assert (done.returncode, done.stderr) == (0, "")
    parts = done.stdout.split("== ")
    assert "0 models ready" in parts[1]
    assert "EMAIL" in parts[3]
    assert "[30:54]" in parts[3]
    assert "nothing found" in parts[3]
    neighbours = [line for line in parts[4].splitlines() if line.startswith("How do I reset")]
    assert len(neighbours) == 1
    assert neighbours[0].endswith("I cannot log in to my account.")
    assert "2 models ready, 0 results held" in parts[5]
    assert "0 models ready, 0 results held" in parts[6]
    assert "(closed)" in parts[6]
