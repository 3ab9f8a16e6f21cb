"""The header and the binary as files: what compiles, what is exported, what is laid out how."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from libsemantic.engine.registry import REGISTRY
from libsemantic.ffi.codecs import FIRST_SIZES
from libsemantic.ffi.generate import PLAIN_C
from libsemantic.ffi.native import Boundary

from .binding import BUILD, FUNCTIONS, GOOD, HEADER, LIBRARY, MODELS, ROOT, Library
from .harness import HERE, Models, clean_environment, compile_program, run

LAYOUT = HERE / "layout.json"


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(path: str | Path, *options: str) -> dict[str, str]:
    """Return name → kind of the dynamic symbols, without versions."""
    lines = output_of("nm", "-D", *options, path).splitlines()
    return {line.split()[-1].split("@")[0]: line.split()[-2] for line in lines}


def dynamic(tag: str) -> list[str]:
    text = output_of("readelf", "-dW", LIBRARY)
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


@pytest.mark.parametrize(
    "compiler",
    [
        ["cc", "-std=c99", "-x", "c"],
        ["cc", "-std=c17", "-x", "c"],
        ["c++", "-std=c++11", "-x", "c++"],
        ["c++", "-std=c++20", "-x", "c++"],
    ],
    ids=lambda compiler: compiler[1][5:],
)
def test_the_header_compiles_and_its_initialisers_are_complete(
    tmp_path: Path, compiler: list[str]
) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]} on this machine")
    standard = subprocess.run(
        [*compiler, "-fsyntax-only", "/dev/null"], capture_output=True, check=False
    )
    if standard.returncode != 0:
        pytest.skip(f"this {compiler[0]} does not know {compiler[1]}")
    program = tmp_path / "initializers"
    subprocess.run(
        [
            *(*compiler, "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"),
            *("-I", str(ROOT / "include"), str(HERE / "initializers.c"), "-o", str(program)),
        ],
        check=True,
    )
    assert run(program).returncode == 0


def test_every_initialiser_is_tried() -> None:
    macros = re.findall(r"#define (SEMANTIC_\w+_INIT)\b", (ROOT / "include/semantic.h").read_text())
    assert len(macros) == 5
    tried = (HERE / "initializers.c").read_text()
    assert [macro for macro in macros if macro not in tried] == []


def test_the_built_header_is_the_sources_header() -> None:
    assert (BUILD / "include/semantic.h").read_bytes() == (ROOT / "include/semantic.h").read_bytes()


def constants() -> list[str]:
    return re.findall(r"\b(SEMANTIC_\w+) = ", HEADER.types)


def test_layout_and_constants_are_those_published(library: Library, tmp_path: Path) -> None:
    """As the C compiler sees them, and as cffi does.

    A new field is appended to its struct, a new constant to its enum: then, and only then, a
    line is added to the table. What stands there never changes.
    """
    ffi = library.ffi
    structs = {
        name: [field for field, _ in ctype.fields]
        for name in sorted(ffi.list_types()[0])
        if (ctype := ffi.typeof(name)).kind == "struct"
    }
    lines = [
        *(f'    printf("%d\\n", (int){name});' for name in constants()),
        *(f'    printf("%zu\\n", sizeof({name}));' for name in structs),
        *(
            f'    printf("%zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
            for name, fields in structs.items()
            for field in fields
        ),
    ]
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        f"#include <semantic.h>\n#include <stdio.h>\nint main(void) {{\n{body}\n    return 0;\n}}\n"
    )
    compile_program(source, tmp_path / "layout")
    said = iter(run(tmp_path / "layout").stdout.splitlines())
    values = {name: int(next(said)) for name in constants()}
    sizes = {name: int(next(said)) for name in structs}
    places = {
        name: {field: [int(number) for number in next(said).split()] for field in fields}
        for name, fields in structs.items()
    }
    published = json.loads(LAYOUT.read_text())
    assert {"constants": values, "sizes": sizes, "fields": places} == published
    for name, fields in structs.items():
        assert ffi.sizeof(name) == sizes[name]
        for field in fields:
            assert ffi.offsetof(name, field) == places[name][field][0]
    for name in constants():
        assert getattr(library.lib, name) == values[name]


def test_the_first_sizes_of_options_never_change() -> None:
    first = {
        "semantic_init_options": 56,
        "semantic_load_options": 104,
        "semantic_run_options": 64,
        "semantic_request": 24,
    }
    assert first == FIRST_SIZES
    sizes = json.loads(LAYOUT.read_text())["sizes"]
    assert all(first[name] <= sizes[name] for name in first)


def test_header_binary_python_side_and_tests_know_the_same_functions(
    library: Library, models: Models
) -> None:
    exported = symbols(LIBRARY, "--defined-only")
    assert set(exported.values()) == {"T"}
    header = set(FUNCTIONS)
    assert len(header) == 21
    assert set(exported) == header | {"semantic_candle_calls"}  # for the library of candle alone
    library.call("semantic_init", models.arguments("semantic_init"))
    binding = sys.modules["_libsemantic"]
    entries = Boundary(binding.ffi, binding.lib, REGISTRY).entries()
    assert set(entries) & PLAIN_C == set()
    assert set(entries) | PLAIN_C == header
    assert set(GOOD) == header


def test_soname_dependencies_and_search_path() -> None:
    assert dynamic("SONAME") == ["libsemantic.so.0"]
    needed = dynamic("NEEDED")
    python = [name for name in needed if name.startswith("libpython")]
    assert len(python) == 1
    system = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
    others = {name for name in needed if not name.startswith("ld-linux")} - set(python)
    assert others <= system
    paths = [entry for paths in dynamic("RUNPATH") for entry in paths.split(":")]
    assert dynamic("RPATH") == []
    for entry in paths:  # the folder of the Python library, and nothing else
        assert (Path(entry) / python[0]).exists()
    link = BUILD / "lib" / "libsemantic.so"
    assert link.is_symlink()
    assert link.readlink() == Path("libsemantic.so.0")


def test_nothing_is_undefined_beyond_libc_and_python() -> None:
    resolved = dict(re.findall(r"(\S+) => (/\S+)", output_of("ldd", LIBRARY)))
    known = {
        name
        for library, path in resolved.items()
        if library.startswith(("libpython", "libc.", "libdl.", "libpthread."))
        for name in symbols(path, "--defined-only")
    }
    undefined = {name for name, kind in symbols(LIBRARY, "--undefined-only").items() if kind != "w"}
    assert len(undefined) > 40
    assert undefined - known - {"__tls_get_addr"} == set()  # that one is the dynamic loader's


def pkg_config_flags(folder: Path, package: str = "semantic") -> list[str]:
    """Return the flags of a .pc file, by pkg-config or, without it, by its few rules."""
    if shutil.which("pkg-config"):
        environment = clean_environment(PKG_CONFIG_PATH=str(folder))
        command = ["pkg-config", "--cflags", "--libs", package]
        return shlex.split(
            subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout
        )
    text = (folder / f"{package}.pc").read_text()
    values = {"pcfiledir": str(folder)} | dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
    flags = " ".join(re.findall(r"^(?:Cflags|Libs): (.*)$", text, re.M)).split()
    while any("${" in flag for flag in flags):
        flags = [re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], flag) for flag in flags]
    return flags


def test_what_is_built_can_be_moved(tmp_path: Path) -> None:
    moved = tmp_path / "moved here"
    for folder in ("lib", "include"):
        shutil.copytree(BUILD / folder, moved / folder, symlinks=True)
    program = tmp_path / "host"
    compile_program(HERE / "host.c", program, *pkg_config_flags(moved / "lib" / "pkgconfig"))
    environment = {"LIBSEMANTIC_PYTHON": sys.prefix}
    answer = run(program, MODELS / "bert-seq", env=environment)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "biology 0.5143\n", "")
    loaded = run(program, env=environment | {"LD_TRACE_LOADED_OBJECTS": "1"}).stdout
    paths = re.findall(r"libsemantic\.so\.0 => (.*) \(0x", loaded)
    assert [Path(path).resolve() for path in paths] == [moved / "lib" / "libsemantic.so.0"]
