"""Print the interpreter behind this Python if the library can embed it, else why it cannot.

Run with the Python in question, 3.11 or newer. Exit status 0: the path on standard output.
Exit status 1: the reasons on standard error, on one line.
"""

import ctypes
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def _variable(name: str) -> str:
    """Return a build variable of this Python as text, empty where it is not set."""
    value = sysconfig.get_config_var(name)
    return "" if value is None else str(value)


def _finds_libpython(name: str) -> bool:
    """Tell whether the shared libpython lies beside this Python or on the loader's path."""
    folders = (_variable("LIBDIR"), str(Path(sys.base_prefix) / "lib"))
    if any(folder and (Path(folder) / name).exists() for folder in folders):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def interpreter() -> Path:
    """Return this Python, or the one that made it if this is a virtual environment's."""
    if sys.prefix == sys.base_prefix:
        return Path(sys.executable)
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Path(sys.base_prefix) / "bin" / minor


def reasons_against() -> Iterator[str]:
    """Yield what this Python lacks, one phrase each; nothing if it fits."""
    if _variable("Py_GIL_DISABLED") == "1":
        yield "it is a free-threaded build"
    library = _variable("INSTSONAME") or _variable("LDLIBRARY")
    if _variable("Py_ENABLE_SHARED") != "1" or ".so" not in library:
        yield "it was built without a shared libpython, so it cannot be embedded"
    elif not _finds_libpython(library):
        yield f"its {library} is neither in {_variable('LIBDIR')} nor on the loader's path"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        yield f"its headers are missing ({header})"
    for module in ("venv", "ensurepip"):
        spec = importlib.util.find_spec(module)
        # No origin: only an empty folder is left of it.
        if spec is None or spec.origin is None:
            yield f"its module {module} is missing"
    if not interpreter().exists():
        yield f"the Python that made its environment is missing ({interpreter()})"


def main() -> int:
    """Print the answer and return the exit status."""
    reasons = tuple(reasons_against())
    if reasons:
        sys.stderr.write("; ".join(reasons) + "\n")
        return 1
    sys.stdout.write(f"{interpreter()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
