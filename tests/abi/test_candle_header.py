"""The candle header and library as files, against the contract: forms, layouts, names, links."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .binding import BUILD, MODELS, ROOT
from .binding import LIBRARY as SEMANTIC
from .candle import CONTRACT, FUNCTIONS, HEADER, LIBRARY, STRUCTS
from .harness import clean_environment, compile_program, run
from .test_header import pkg_config_flags, symbols

SOURCE = ROOT / "include" / HEADER


def test_the_contract_is_whole() -> None:
    assert len(FUNCTIONS) == 138
    assert sum(row["in_go"] for row in FUNCTIONS.values()) == 119
    assert len(STRUCTS) == 34


def test_none_is_missing_and_none_is_too_much() -> None:
    exported = symbols(LIBRARY, "--defined-only")
    assert set(exported) == set(FUNCTIONS)
    assert set(exported.values()) == {"T"}
    own = symbols(SEMANTIC, "--defined-only")
    assert own
    assert {name for name in own if not name.startswith("semantic_")} == set()


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
def test_the_header_compiles(compiler: list[str]) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]} on this machine")
    strict = ("-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wstrict-prototypes", "-Werror")
    chosen = [flag for flag in strict if compiler[0] == "cc" or flag != "-Wstrict-prototypes"]
    subprocess.run(
        [*compiler, *chosen, "-fsyntax-only", "-include", str(SOURCE), "/dev/null"], check=True
    )


def test_the_built_header_is_the_sources_header() -> None:
    assert (BUILD / "include" / HEADER).read_bytes() == SOURCE.read_bytes()


def fields_of_the_header() -> dict[str, list[str]]:
    """Return the fields of each struct by the names that the header gives them."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", SOURCE.read_text(), flags=re.S)
    found = {}
    for body, name in re.findall(r"typedef struct \w*\s*\{(.*?)\}\s*(\w+);", text, re.S):
        found[name] = re.findall(r"(\w+)\s*;", body)
    return found


# Here the two forms differ in more than a spelling, and callers use that of Go.
OF_GO_ALONE = {"classify_bert_pii_tokens", "classify_batch_with_lora"}


def form(row: Mapping[str, Any], key: str) -> str:
    """Return a C type of a pointer to the function in one of the forms of the contract."""
    shape = row if key == "rust" else row["go"]
    return f"{shape['returns']} (*)({', '.join(shape['parameters']) or 'void'})"


def assertions() -> Iterator[str]:
    names = fields_of_the_header()
    for struct, row in STRUCTS.items():
        if "values" in row:
            yield f'_Static_assert(sizeof({struct}) == {row["size"]}, "{struct}");'
            continue
        yield f'_Static_assert(sizeof({struct}) == {row["size"]}, "{struct}");'
        yield f'_Static_assert(_Alignof({struct}) == {row["align"]}, "{struct}");'
        assert len(names[struct]) == len(row["fields"]), struct
        for own, (_, kind, offset, size) in zip(names[struct], row["fields"], strict=True):
            at = f"{struct}.{own}"
            yield f'_Static_assert(offsetof({struct}, {own}) == {offset}, "{at}");'
            yield f'_Static_assert(sizeof((({struct} *)0)->{own}) == {size}, "{at}");'
            yield (
                f"_Static_assert(__builtin_types_compatible_p(__typeof__((({struct} *)0)->{own}), "
                f'{kind}), "type of {at}");'
            )
    for function, row in FUNCTIONS.items():
        allowed = [form(row, "rust"), *([form(row, "go")] if "go" in row else [])]
        if function.startswith("candle_mlp"):  # const or not, opaque or not: all one
            continue
        if function in OF_GO_ALONE:
            allowed = allowed[1:]
        either = " || ".join(
            f"__builtin_types_compatible_p(__typeof__(&{function}), {each})" for each in allowed
        )
        yield f'_Static_assert({either}, "{function}");'
    for label, value in STRUCTS["NLILabel"]["values"].items():
        enumerator = f"NLI_{label.upper()}"
        yield f'_Static_assert({enumerator} == {value}, "{enumerator}");'


def test_structs_and_prototypes_are_those_of_the_contract(tmp_path: Path) -> None:
    """As the compiler sees them: sizes, alignments, offsets, types of fields, prototypes."""
    source = tmp_path / "layout.c"
    checks = list(assertions())
    assert len(checks) > 400
    source.write_text(
        f"#include <{HEADER}>\n#include <stddef.h>\n" + "\n".join(checks) + "\nint nothing;\n"
    )
    command = ["cc", "-std=gnu11", "-fsyntax-only", "-I", str(ROOT / "include"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def test_every_function_has_its_line() -> None:
    """The comment that ends right before a prototype, or begins on the line of another, is its."""
    text = SOURCE.read_text()
    for name in FUNCTIONS:
        places = [match.start() for match in re.finditer(rf"\b{name}\(", text)]
        assert places, name
        before = text[: places[0]].rstrip().rsplit("\n\n", 1)[-1]
        after = text[places[0] :].split("\n", 1)[0]
        assert "/*" in before or "/*" in after or "//" in before, name


def dynamic(tag: str) -> list[str]:
    text = subprocess.run(
        ["readelf", "-dW", str(LIBRARY)], check=True, capture_output=True, text=True
    ).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def test_the_library_is_a_small_one_that_needs_the_other() -> None:
    needed = {name for name in dynamic("NEEDED") if not name.startswith("ld-linux")}
    assert "libsemantic.so.0" in needed
    assert not [name for name in needed if name.startswith("libpython")]
    beside, built = dynamic("RUNPATH")[0].split(":")
    assert (beside, Path(built)) == ("$ORIGIN", BUILD / "lib")
    assert LIBRARY.resolve().stat().st_size < 1_000_000


def test_what_is_built_can_be_moved_and_is_found_by_pkg_config(tmp_path: Path) -> None:
    moved = tmp_path / "moved here"
    for folder in ("lib", "include"):
        shutil.copytree(BUILD / folder, moved / folder, symlinks=True)
    flags = pkg_config_flags(moved / "lib" / "pkgconfig", "candle_semantic_router")
    program = tmp_path / "host"
    compile_program(write_host(tmp_path), program, *flags)
    answer = run(program, MODELS / "bert-seq", env=clean_environment(LIBSEMANTIC_PYTHON=ENV))
    assert (answer.returncode, answer.stdout) == (0, "0 0.5143\n"), answer.stderr


ENV = str(BUILD / "env")
HOST = """
#include <stdbool.h>
#include <stdio.h>

typedef struct { int class; float confidence; char *label; } ClassificationResult;
extern bool init_classifier(const char *model_id, int num_classes, bool use_cpu);
extern ClassificationResult classify_text(const char *text);

int main(int argc, char **argv) {
    if (argc != 2 || !init_classifier(argv[1], 7, true))
        return 1;
    ClassificationResult answer = classify_text("What is the derivative of x squared?");
    printf("%d %.4f\\n", answer.class, answer.confidence);
    return 0;
}
"""
DUMMY = """
#include <stdbool.h>

typedef struct { int class; float confidence; char *label; } ClassificationResult;
bool init_classifier(const char *model_id, int num_classes, bool use_cpu) {
    (void)model_id, (void)num_classes, (void)use_cpu;
    return true;
}
ClassificationResult classify_text(const char *text) {
    ClassificationResult answer = {(int)text[0], 0.25f, 0};
    return answer;
}
"""


def write_host(folder: Path) -> Path:
    """A program that declares the functions itself, as cgo's preamble does."""
    source = folder / "host.c"
    source.write_text(HOST)
    return source


@pytest.mark.parametrize("way", ["copied beside", "linked to", "first on the library path"])
def test_swapping_the_file_under_a_linked_program(tmp_path: Path, way: str) -> None:
    release = tmp_path / "target" / "release"
    release.mkdir(parents=True)
    dummy = release / LIBRARY.name
    (tmp_path / "dummy.c").write_text(DUMMY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(tmp_path / "dummy.c"), "-o", str(dummy)], check=True
    )
    program = tmp_path / "host"
    flags = (f"-L{release}", f"-Wl,-rpath,{release}", "-lcandle_semantic_router", "-ldl", "-lm")
    compile_program(write_host(tmp_path), program, *flags)
    assert run(program, MODELS / "bert-seq").stdout == f"{ord('W')} 0.2500\n"
    environment = clean_environment(LIBSEMANTIC_PYTHON=ENV)
    if way == "first on the library path":
        environment["LD_LIBRARY_PATH"] = str(BUILD / "lib")
    else:
        dummy.unlink()
        if way == "linked to":
            dummy.symlink_to(LIBRARY)
        else:
            shutil.copy(LIBRARY, dummy)
            shutil.copy(SEMANTIC, release / SEMANTIC.name)
    answer = run(program, MODELS / "bert-seq", env=environment)
    assert (answer.returncode, answer.stdout) == (0, "0 0.5143\n"), answer.stderr


def test_the_contract_names_every_struct_of_the_header() -> None:
    own = set(fields_of_the_header())
    assert own - set(CONTRACT["structs"]) <= {"MLPHandle"}
