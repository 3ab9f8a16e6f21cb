"""Make a Python environment with the pinned requirements of pyproject.toml.

usage: setup_env.py [--installed] [--provider GROUP] ENVIRONMENT

Run with a Python that tools/check_python.py accepts. Without an option ENVIRONMENT is one to
develop in: run-time and development requirements, and ``libsemantic`` as links to the sources. It
is left alone while its stamp matches the requirements and the Python, so a second run costs nothing
and asks no network. With --installed it is made anew, with the run-time requirements and a copy of
the project. With --provider the package of that dependency group stands in place of onnxruntime.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("engine", "ffi")
RUNTIME = "onnxruntime=="  # begins the requirement that the one of a provider replaces
STAMP = ".libsemantic"
UNFINISHED = "unfinished\n"
IDENTITY_PROGRAM = "import sys, pip; print(sys.version, sys.base_prefix)"
OFFLINE_REMEDY = (
    "check the network and proxy settings, or point PIP_FIND_LINKS at a folder with the wheels "
    "and set PIP_NO_INDEX=1; then run the same command again"
)


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def say(text: str) -> None:
    """Tell the person at the terminal what happens next."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def read_requirements(pyproject: Path, *, development: bool, provider: str = "") -> tuple[str, ...]:
    """Return the pinned requirements in the order of pyproject.toml.

    Development adds the group ``dev`` (dependency groups, PEP 735); the group ``provider``, if it
    is given, replaces onnxruntime. Raises SetupError for a group that is not there and for an entry
    that is no plain requirement.
    """
    table = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    entries: list[object] = list(table["project"]["dependencies"])
    groups = table["dependency-groups"]
    if provider:
        known = sorted(groups.keys() - {"dev"})
        if provider not in known:
            raise SetupError(f"provider {provider!r} is not known; known are {', '.join(known)}")
        entries = [each for each in entries if not str(each).startswith(RUNTIME)]
        entries += groups[provider]
    if development:
        entries += groups["dev"]
    requirements = tuple(entry for entry in entries if isinstance(entry, str))
    if len(requirements) != len(entries):
        raise SetupError(f"{pyproject} includes a group in a group; list its requirements instead")
    return requirements


def stamp_text(requirements: tuple[str, ...]) -> str:
    """Return what the stamp of an environment holds once these requirements are in it."""
    key = "\n".join((sys.version, sys.base_prefix, *sorted(requirements)))
    return hashlib.sha256(key.encode()).hexdigest() + "\n"


def belongs_to_this_python(environment: Path) -> bool:
    """Tell whether the environment works and was made by the running Python."""
    python = environment / "bin" / "python"
    if not python.exists():
        return False
    answer = subprocess.run(
        [python, "-I", "-c", IDENTITY_PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode == 0 and answer.stdout == f"{sys.version} {sys.base_prefix}\n"


def create(environment: Path) -> None:
    """Make the environment anew, deleting what stands in its place."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    say(f"creating {environment} with Python {version} ({sys.executable})")
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"{environment} cannot be made ({error}); check that its folder can be written and "
            "that the Debian package python3-venv is installed"
        ) from error
    (environment / STAMP).write_text(UNFINISHED, encoding="utf-8")


def pip_install(environment: Path, *arguments: str) -> None:
    """Run ``pip install`` in the environment, showing its progress."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "install"]
    command += ["--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise SetupError(f"pip failed, its reason stands above; {OFFLINE_REMEDY}")


def link_sources(environment: Path) -> None:
    """Make ``libsemantic.engine`` and ``libsemantic.ffi`` relative links to the sources."""
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    namespace = environment.resolve() / "lib" / minor / "site-packages" / "libsemantic"
    namespace.mkdir(exist_ok=True)
    for package in PACKAGES:
        link = namespace / package
        target = os.path.relpath(ROOT / package, namespace)
        if link.is_symlink():
            if str(link.readlink()) == target:
                continue
            link.unlink()
        elif link.exists():
            raise SetupError(f"{link} is a copy, not a link; delete {environment} and run again")
        link.symlink_to(target)


def develop(environment: Path, provider: str) -> None:
    """Bring an environment for development up to date."""
    pyproject = ROOT / "pyproject.toml"
    requirements = read_requirements(pyproject, development=True, provider=provider)
    stamp = environment / STAMP
    wanted = stamp_text(requirements)
    if not belongs_to_this_python(environment):
        create(environment)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        # An interrupted run must not look finished.
        stamp.write_text(UNFINISHED, encoding="utf-8")
        say(f"installing {len(requirements)} pinned requirements into {environment}")
        pip_install(environment, *requirements)
        stamp.write_text(wanted, encoding="utf-8")
    link_sources(environment)


def install(environment: Path, provider: str) -> None:
    """Make an environment to run from, with a copy of the project."""
    if environment.exists() and not (environment / STAMP).exists():
        raise SetupError(
            f"{environment} exists and is not libsemantic's; choose another PREFIX or delete it"
        )
    pyproject = ROOT / "pyproject.toml"
    requirements = read_requirements(pyproject, development=False, provider=provider)
    create(environment)
    say(f"installing {len(requirements)} pinned requirements into {environment}")
    pip_install(environment, *requirements)
    say(f"installing libsemantic into {environment}")
    with tempfile.TemporaryDirectory(prefix="libsemantic-") as folder:
        # setuptools works in build/lib of its source folder and packs all that lies there, so
        # the project is packed from a copy without our build/.
        source = Path(folder) / "source"
        source.mkdir()
        for file in (ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("LICEN[CS]E*")):
            shutil.copy(file, source)
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, source / package, ignore=ignored)
        pip_install(environment, "--no-deps", str(source))
    (environment / STAMP).write_text(stamp_text(requirements), encoding="utf-8")


def main() -> int:
    """Parse the command line, do the work and return the exit status."""
    parser = argparse.ArgumentParser(description="Make a Python environment for libsemantic.")
    parser.add_argument("environment", type=Path, help="folder of the environment")
    parser.add_argument("--installed", action="store_true", help="to run from, not to develop in")
    parser.add_argument("--provider", default="", help="openvino or gpu, in place of onnxruntime")
    arguments = parser.parse_args()
    environment: Path = arguments.environment
    try:
        if arguments.installed:
            install(environment.absolute(), arguments.provider)
        else:
            develop(environment, arguments.provider)
    except (SetupError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
