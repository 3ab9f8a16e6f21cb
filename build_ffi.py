"""Compile ``libsemantic.so`` in cffi's embedding mode.

    build/env/bin/python build_ffi.py --output build

writes lib/libsemantic.so.0 with its link, lib/libcandle_semantic_router.so, and for both their
headers in include/ and their files in lib/pkgconfig/ below the output folder. Run it with the
Python whose environment the library is to use.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

# After the path, since the build must not depend on an installed copy.
from ffi import generate  # noqa: E402 (after the path)
from ffi.candle import generate as generate_candle  # noqa: E402 (after the path)

HEADER = ROOT / "include" / "semantic.h"
CANDLE_HEADER = ROOT / "include" / "candle_semantic_router.h"
VERSION = re.findall(r'#define SEMANTIC_VERSION "(.*)"', HEADER.read_text())[0]
SONAME = "libsemantic.so.0"
# candle-binding's library has no SONAME, so programs that were linked with it look for this name.
CANDLE_SONAME = "libcandle_semantic_router.so"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]

# Runs once inside the library. It must not raise: cffi would answer every later call
# with zero bytes.
INIT_CODE = """
from _libsemantic import ffi, lib
try:
    from libsemantic.ffi import bootstrap
    bootstrap.start(ffi, lib)
except BaseException as error:
    import sys
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    remedy = "run make build, or make install, again"
    if isinstance(error, ImportError):
        remedy = "the environment is incomplete, " + remedy
    lib.boundary_report_start(
        f"the Python side cannot start in {sys.prefix}: {reason}; {remedy}".encode()
    )
"""

PKG_CONFIG = """prefix=${{pcfiledir}}/../..

Name: {name}
Description: {description}
Version: {version}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -Wl,-rpath,${{prefix}}/lib -l{name}
"""
DESCRIPTIONS = {
    "semantic": "Classify, tag and embed text inside the calling process",
    "candle_semantic_router": "The functions of candle-binding, answered by libsemantic",
}


def python_link_flags() -> list[str]:
    """Return the flags that link this Python's shared library.

    Raise SystemExit where there is none: an embedded interpreter cannot be had from a
    Python that was linked statically.
    """
    folder = Path(sysconfig.get_config_var("LIBDIR"))
    name = str(sysconfig.get_config_var("LDLIBRARY"))
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not name.endswith(".so"):
        sys.exit(
            f"error: {sys.executable} has no shared libpython; use a Python that was built with "
            "--enable-shared (Debian: apt-get install python3-dev)"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit(
            f"error: Python.h is missing in {sysconfig.get_path('include')}; install the headers "
            "(Debian: apt-get install python3-dev)"
        )
    flags = [f"-L{folder}", f"-l{name.removeprefix('lib').removesuffix('.so')}"]
    if not folder.is_relative_to("/usr/lib"):
        flags.append(f"-Wl,-rpath,{folder}")
    return flags


def build(output: Path) -> None:
    """Generate, compile and lay out the library below ``output``."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        sys.exit(f"error: no C compiler {compiler!r} (Debian: apt-get install gcc libc6-dev)")
    link_flags = python_link_flags()
    header = generate.read_header(HEADER, compiler)
    candle = generate.read_header(CANDLE_HEADER, compiler)
    library = output / "lib"
    objects = ROOT / "build" / "obj"  # not a part of an installation
    for folder in (objects, library / "pkgconfig", output / "include"):
        folder.mkdir(parents=True, exist_ok=True)

    ffi = FFI()
    ffi.cdef(generate.declarations(header) + generate_candle.declarations(candle))
    ffi.embedding_api("")
    ffi.embedding_init_code(INIT_CODE)
    (objects / "candle_calls.h").write_text(generate_candle.calls_header(candle))
    ffi.set_source(
        "_libsemantic", generate.entry_points(header) + generate_candle.table_source(candle)
    )
    ffi.emit_c_code(str(objects / "_libsemantic.c"))
    (objects / "candle_router.c").write_text(generate_candle.router_source(candle))
    (objects / "exports.map").write_text("{ global: semantic_*; local: *; };\n")
    (objects / "candle.map").write_text(generate_candle.exports(candle))

    compile_command = [
        compiler,
        *("-c", "-O2", "-g", "-fPIC", "-pthread", "-std=gnu11"),
        *("-I", str(ROOT / "include"), "-I", str(ROOT / "ffi"), "-I", str(objects)),
        *("-I", sysconfig.get_path("include")),
        f'-DSEMANTIC_DEFAULT_ENVIRONMENT="{Path(sys.prefix).resolve()}"',
    ]

    def compiled(*sources: Path) -> list[str]:
        targets = []
        for source in sources:
            target = objects / f"{source.parent.name}-{source.stem}.o"
            # cffi's own boilerplate is not ours to keep free of warnings.
            strict = WARNINGS if source.name != "_libsemantic.c" else ["-Wall", "-Wno-unused"]
            command = [*compile_command, *strict, str(source), "-o", str(target)]
            subprocess.run(command, check=True)
            targets.append(str(target))
        return targets

    def link(soname: str, exports: str, *inputs: str) -> None:
        subprocess.run(
            [
                *(compiler, "-shared", "-pthread", "-o", str(library / soname), *inputs),
                *(f"-Wl,-soname,{soname}", f"-Wl,--version-script={objects / exports}"),
                *("-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,-z,relro"),
            ],
            check=True,
        )

    own = sorted((ROOT / "ffi").glob("*.c"))
    link(SONAME, "exports.map", *compiled(*own, objects / "_libsemantic.c"), *link_flags, "-ldl")
    development = library / "libsemantic.so"
    development.unlink(missing_ok=True)
    development.symlink_to(SONAME)
    own = sorted((ROOT / "ffi" / "candle").glob("*.c"))
    # It may be put into the folder where another program looks for it, without its neighbour.
    rpath = f"-Wl,-rpath,$ORIGIN:{library}"
    paths = [f"-L{library}", rpath, "-lsemantic"]
    link(CANDLE_SONAME, "candle.map", *compiled(*own, objects / "candle_router.c"), *paths)
    for source in (HEADER, CANDLE_HEADER):
        shutil.copyfile(source, output / "include" / source.name)
    for name, description in DESCRIPTIONS.items():
        (library / "pkgconfig" / f"{name}.pc").write_text(
            PKG_CONFIG.format(name=name, description=description, version=VERSION)
        )
    print(f"built {library / SONAME} and {library / CANDLE_SONAME}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="installation prefix")
    build(parser.parse_args().output.resolve())
