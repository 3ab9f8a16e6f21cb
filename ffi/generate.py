"""Turn ``semantic.h`` into cffi declarations and C entry points, at build time.

The header is the only place where a prototype is written by hand. Each function in it
that is not plain C gets an entry point: C code that fills the caller's error with the
failure answer, refuses NULL pointers, makes sure Python runs, and forwards to a static
``extern "Python"`` function of the same parameters.
"""

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

# As in codecs.py, which needs numpy and cannot be imported to build.
INIT_FIRST_SIZE = 56
MAX_STRUCT_SIZE = 1 << 16

# Implemented in ffi/*.c; they work before Python runs and without it.
PLAIN_C = frozenset(
    {
        "semantic_abi_version",
        "semantic_version",
        "semantic_status_name",
        "semantic_set_log_callback",
        "semantic_free",
    }
)

# What a function answers while Python has not been started; the others start it.
BEFORE_START = {
    "semantic_get_stats": "boundary_empty_stats(stats, error)",
    "semantic_cleanup": "boundary_leave_idle(error)",
    "semantic_cancel": "cancel_key == 0 ? SEMANTIC_INVALID_ARGUMENT : SEMANTIC_NOT_FOUND",
}

# How many an array holds, by its name; of none it may be NULL.
_COUNTS = {"requests": "request_count"}

# Pointers that may be NULL: their absence has a meaning.
OPTIONAL = frozenset({"options", "error"})

_STANDARD_TYPES = """
typedef unsigned long size_t;
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
"""

_BOUNDARY_DECLARATIONS = """
void *boundary_block_alloc(size_t size);
void *boundary_block_copy(const void *data, size_t size, const void *words, size_t count);
void semantic_free(const void *block);
uint64_t boundary_blocks_unfreed(void);
uint64_t boundary_blocks_unfreed_bytes(void);
uint64_t boundary_log_dropped(void);
void boundary_log(semantic_log_level level, const char *message, size_t length);
void boundary_report_start(const char *failure);
void boundary_end_calls(void);
int64_t boundary_resident_before_start(void);
void boundary_set_error(semantic_error *error, semantic_status status, int64_t input_index,
                        const char *text, size_t length);
extern "Python" void py_cancel_everything(void);
"""

_PREAMBLE = """
#include "boundary.h"

static void py_cancel_everything(void);

static semantic_status boundary_leave_idle(semantic_error *error)
{
    boundary_set_error(error, SEMANTIC_OK, -1, "", 0);
    return SEMANTIC_OK;
}

static int bind_python(void)
{
    return cffi_start_python();
}

__attribute__((constructor)) static void connect_boundary(void)
{
    boundary_bind_python = bind_python;
    boundary_cancel_everything = py_cancel_everything;
}
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function of the header."""

    name: str
    declaration: str
    type: str
    pointers: int
    is_const: bool

    @property
    def is_out(self) -> bool:
        """Tell whether the function writes through it."""
        return self.name != "error" and (
            self.pointers == 2 or (self.pointers == 1 and not self.is_const)
        )


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the header; ``returns`` is a type as C text."""

    name: str
    declaration: str
    returns: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The header: its types as C text, its functions, and the fields of its structs."""

    types: str
    functions: tuple[Function, ...]
    structs: Mapping[str, tuple[Parameter, ...]]


def read_header(header: Path, compiler: str) -> Header:
    """Preprocess and parse the header.

    cffi cannot read the raw text (macros, attributes), so it gets the preprocessed one,
    with the standard includes left out since cffi knows their types.
    """
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stddef.h", "stdint.h"):
            (Path(empty) / name).touch()
        (Path(empty) / "stdbool.h").write_text("#define bool _Bool\n")
        command = [compiler, "-E", "-P", "-nostdinc", "-I", empty, str(header)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tree = c_parser.CParser().parse(_STANDARD_TYPES + text)
    printer = c_generator.CGenerator()
    standard = _STANDARD_TYPES.count("typedef")
    types, functions, structs = [], [], {}
    for node in tree.ext[standard:]:
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            functions.append(_function(node, printer))
            continue
        types.append(printer.visit(node) + ";")
        struct = node.type.type if isinstance(node, c_ast.Typedef) else None
        if isinstance(struct, c_ast.Struct) and struct.decls:
            structs[node.name] = tuple(
                _parameter(field, printer)
                for field in struct.decls
                if not isinstance(field.type, c_ast.ArrayDecl)
            )
    return Header("\n".join(types), tuple(functions), structs)


def _function(node: c_ast.Decl, printer: c_generator.CGenerator) -> Function:
    declared = [] if node.type.args is None else node.type.args.params
    parameters = [
        _parameter(parameter, printer)
        for parameter in declared
        if getattr(parameter, "name", None) is not None
    ]
    returns = printer.visit(node.type.type).removesuffix(node.name).rstrip()
    return Function(node.name, printer.visit(node), returns, tuple(parameters))


def _parameter(node: c_ast.Decl, printer: c_generator.CGenerator) -> Parameter:
    kind, pointers = node.type, 0
    while isinstance(kind, c_ast.PtrDecl):
        kind, pointers = kind.type, pointers + 1
    return Parameter(
        name=node.name,
        declaration=printer.visit(node),
        type=" ".join(kind.type.names),
        pointers=pointers,
        is_const="const" in kind.quals,
    )


def forwarded(header: Header) -> tuple[Function, ...]:
    """Return the functions that Python answers."""
    return tuple(function for function in header.functions if function.name not in PLAIN_C)


def python_declaration(function: Function) -> str:
    """Declare the function's counterpart in Python; handles are passed as numbers."""
    parameters = ", ".join(
        f"uint64_t {p.name}" if p.type == "semantic_model" and not p.pointers else p.declaration
        for p in function.parameters
    )
    return f"int32_t py_{function.name}({parameters})"


def declarations(header: Header) -> str:
    """Return what cffi needs to know: types, C functions, and the Python functions."""
    python = "".join(
        f'extern "Python" {python_declaration(function)};\n' for function in forwarded(header)
    )
    return header.types + _BOUNDARY_DECLARATIONS + python


def entry_points(header: Header) -> str:
    """Return the C source of the exported functions."""
    return _PREAMBLE + "".join(_entry_point(function) for function in forwarded(header))


def _entry_point(function: Function) -> str:
    names = {parameter.name for parameter in function.parameters}
    error = "error" if "error" in names else "NULL"
    outs = [p for p in function.parameters if p.is_out]
    lines: list[str] = []
    for out in outs:
        empty = f"*{out.name} = NULL" if out.pointers == 2 else f"{out.name}->id = 0"
        lines += [f"    if ({out.name} != NULL)", f"        {empty};"]
    lines += [
        f"    semantic_status status = boundary_begin({error});",
        "    if (status != SEMANTIC_OK)",
        "        return status;",
    ]
    for out in outs:
        lines += _refuse_null(out, error)
    for parameter in function.parameters:
        if parameter.pointers and not parameter.is_out and parameter.name not in OPTIONAL:
            count = _COUNTS.get(parameter.name, "n")
            condition = f" && {count} > 0" if count in names else ""
            lines += _refuse_null(parameter, error, condition)
        if parameter.name == "timeout_ms":
            lines += [
                "    if (timeout_ms < 0)",
                f"        return boundary_fail({error}, SEMANTIC_INVALID_ARGUMENT,",
                '                             "timeout_ms is negative; give 0 or more");',
            ]
    if function.name in BEFORE_START:
        lines += [
            "    if (!boundary_started())",
            f"        return {BEFORE_START[function.name]};",
        ]
    environment = "NULL"
    if function.name == "semantic_init":
        # The start needs the environment, before Python can check the struct.
        lines += [
            f"    if (options != NULL && (options->struct_size < {INIT_FIRST_SIZE} ||",
            f"                            options->struct_size > {MAX_STRUCT_SIZE}))",
            f'        return boundary_wrong_size({error}, "semantic_init_options",',
            "                                   options->struct_size, sizeof *options);",
        ]
        environment = "options != NULL ? options->environment : NULL"
    arguments = ", ".join(
        f"{p.name}.id" if p.type == "semantic_model" and not p.pointers else p.name
        for p in function.parameters
    )
    result = next((f"(const void **){p.name}" for p in outs if p.pointers == 2), "NULL")
    lines += [
        f"    status = boundary_enter({environment}, {error});",
        "    if (status != SEMANTIC_OK)",
        "        return status;",
        f"    status = py_{function.name}({arguments});",
    ]
    for out in outs:
        if out.pointers == 1:
            lines += [
                f"    if (status == SEMANTIC_OK && {out.name}->id == 0)",
                f"        status = boundary_fail({error}, SEMANTIC_INTERNAL,",
                '                               "Python answered without a handle");',
            ]
    lines += [
        f"    return boundary_leave(status, {result}, {error});",
    ]
    body = "\n".join(lines)
    return f"\nstatic {python_declaration(function)};\n\n{function.declaration}\n{{\n{body}\n}}\n"


def _refuse_null(parameter: Parameter, error: str, condition: str = "") -> list[str]:
    return [
        f"    if ({parameter.name} == NULL{condition})",
        f'        return boundary_null({error}, "{parameter.name}");',
    ]
