"""What the tests work with: loaded models, compiled programs, processes that must not hang."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from libsemantic.engine.errors import Status
from libsemantic.ffi.codecs import CData

from .binding import BUILD, MODEL_OF, MODELS, Library

HERE = Path(__file__).parent


class Models:
    """Golden models, loaded through C when they are first asked for."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._handles: dict[str, int] = {}

    @staticmethod
    def name(folder: str) -> str:
        return f"golden {folder}"

    def __getitem__(self, folder: str) -> int:
        if folder not in self._handles:
            library = self._library
            arguments = library.good_arguments("semantic_load_model", 0, "")
            arguments["path"] = library.text(str(MODELS / folder))
            arguments["options"] = library.options(
                "semantic_load_options", {"name": self.name(folder), "max_tokens": 128}
            )
            status = library.call("semantic_load_model", arguments)
            assert status == Status.OK, library.message(arguments["error"])
            self._handles[folder] = arguments["model"].id
        return self._handles[folder]

    def forget(self) -> None:
        """Load anew from here on: a cleanup has unloaded all."""
        self._handles.clear()

    def arguments(self, function: str) -> dict[str, CData]:
        """Return arguments that make the function succeed."""
        folder = MODEL_OF.get(function, "bert-seq")
        return self._library.good_arguments(function, self[folder], self.name(folder))


class Programs:
    """The C programs of this folder, each compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiled: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._compiled:
            target = self._folder / Path(name).stem
            compile_program(HERE / f"{name}.c", target)
            self._compiled[name] = target
        return self._compiled[name]


def compile_program(source: Path, target: Path, *flags: str, libraries: Sequence[str] = ()) -> None:
    """Compile and link against the built library, or with the given flags instead.

    ``libraries`` are linked besides, by their names.
    """
    library = BUILD / "lib"
    link = flags or ("-I", str(BUILD / "include"), f"-L{library}", f"-Wl,-rpath,{library}")
    subprocess.run(
        [
            *("cc", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", str(source)),
            *("-o", str(target), *link, *(() if flags else ("-lsemantic",))),
            *(f"-l{name}" for name in libraries),
        ],
        check=True,
    )


def clean_environment(**values: str) -> dict[str, str]:
    """Return this process's environment without what steers Python or the library."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "LIBSEMANTIC", "VIRTUAL_ENV"))
    }
    return kept | values


def run(
    *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it said; a hang fails the test."""
    return subprocess.run(
        [str(part) for part in command],
        env=clean_environment() if env is None else dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_empty(library: Library, name: str, arguments: dict[str, CData]) -> bool:
    """Tell whether the out value, if there is one, is NULL or 0."""
    return library.out(name, arguments) in (None, 0, library.ffi.NULL)


def refused(
    library: Library,
    name: str,
    arguments: dict[str, CData],
    status: Status = Status.INVALID_ARGUMENT,
) -> str:
    """Require that the call fails with the status and an empty out value; return its message."""
    assert library.call(name, arguments) == status
    assert is_empty(library, name, arguments)
    error = arguments["error"]
    assert error.status == status
    message = library.message(error)
    assert message
    assert "\n" not in message
    return message
