"""Compile ``libsemantic.so`` in cffi's embedding mode.

    build/env/bin/python build_ffi.py --output build

writes lib/libsemantic.so.0 with its link, include/semantic.h and lib/pkgconfig/semantic.pc
below the output folder. Run it with the Python whose environment the library is to use.
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

from ffi import generate  # noqa: E402  (the build must not depend on an installed copy)

HEADER = ROOT / "include" / "semantic.h"
VERSION = re.findall(r'#define SEMANTIC_VERSION "(.*)"', HEADER.read_text())[0]
SONAME = "libsemantic.so.0"
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

PKG_CONFIG = f"""prefix=${{pcfiledir}}/../..

Name: semantic
Description: Classify, tag and embed text inside the calling process
Version: {VERSION}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -Wl,-rpath,${{prefix}}/lib -lsemantic
"""


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
    library = output / "lib"
    objects = ROOT / "build" / "obj"  # not a part of an installation
    for folder in (objects, library / "pkgconfig", output / "include"):
        folder.mkdir(parents=True, exist_ok=True)

    ffi = FFI()
    ffi.cdef(generate.declarations(header))
    ffi.embedding_api("")
    ffi.embedding_init_code(INIT_CODE)
    ffi.set_source("_libsemantic", generate.entry_points(header))
    ffi.emit_c_code(str(objects / "_libsemantic.c"))

    exports = objects / "exports.map"
    exports.write_text("{ global: semantic_*; local: *; };\n")
    common = [
        compiler,
        *("-c", "-O2", "-g", "-fPIC", "-pthread", "-std=gnu11"),
        *("-I", str(ROOT / "include"), "-I", str(ROOT / "ffi")),
        *("-I", sysconfig.get_path("include")),
        f'-DSEMANTIC_DEFAULT_ENVIRONMENT="{Path(sys.prefix).resolve()}"',
    ]
    compiled = []
    for source in [*sorted((ROOT / "ffi").glob("*.c")), objects / "_libsemantic.c"]:
        target = objects / f"{source.stem}.o"
        # cffi's own boilerplate is not ours to keep free of warnings.
        strict = WARNINGS if source.parent.name == "ffi" else ["-Wall", "-Wno-unused"]
        subprocess.run([*common, *strict, str(source), "-o", str(target)], check=True)
        compiled.append(str(target))
    subprocess.run(
        [
            *(compiler, "-shared", "-pthread", "-o", str(library / SONAME), *compiled),
            *(f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={exports}", "-Wl,-Bsymbolic"),
            *("-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,-z,relro", *link_flags, "-ldl"),
        ],
        check=True,
    )
    link = library / "libsemantic.so"
    link.unlink(missing_ok=True)
    link.symlink_to(SONAME)
    shutil.copyfile(HEADER, output / "include" / "semantic.h")
    (library / "pkgconfig" / "semantic.pc").write_text(PKG_CONFIG)
    print(f"built {library / SONAME}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="installation prefix")
    build(parser.parse_args().output.resolve())
