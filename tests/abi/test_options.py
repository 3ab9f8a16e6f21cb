"""Options: their sizes, their enums, their limits."""

from dataclasses import fields
from enum import IntEnum
from typing import get_type_hints

import pytest

from libsemantic.engine.config import LoadOptions, RunOptions, RuntimeOptions
from libsemantic.engine.errors import Status
from libsemantic.ffi.codecs import FIRST_SIZES, MAX_STRUCT_SIZE

from .binding import Library, having, options_of
from .harness import Models, refused

OPTIONS = {
    "semantic_init_options": RuntimeOptions,
    "semantic_load_options": LoadOptions,
    "semantic_run_options": RunOptions,
}


def enum_fields() -> list[tuple[str, str, type[IntEnum]]]:
    return [
        (struct, field.name, hint)
        for struct, options in OPTIONS.items()
        for field in fields(options)
        if isinstance(hint := get_type_hints(options)[field.name], type)
        and issubclass(hint, IntEnum)
    ]


@pytest.mark.parametrize("name", having("options"))
def test_sizes_of_options(library: Library, models: Models, name: str) -> None:
    ffi, struct = library.ffi, options_of(name)
    first, size = FIRST_SIZES[struct], ffi.sizeof(struct)
    memory = ffi.new("char[]", MAX_STRUCT_SIZE + 8)
    arguments = models.arguments(name)
    arguments["options"] = options = ffi.cast(f"{struct} *", memory)
    for wrong in (0, 1, 8, first - 1, MAX_STRUCT_SIZE + 1, 2**64 - 1):
        options.struct_size = wrong
        message = refused(library, name, arguments)
        assert f"{struct}.struct_size is {wrong}" in message
        assert f"{size} in this version" in message
    for right in (first, size, size + 1, size + 400, MAX_STRUCT_SIZE):
        options.struct_size = right
        good = models.arguments(name) | {"options": options}
        assert library.call(name, good) == Status.OK, library.message(good["error"])
        if name == "semantic_load_model":
            library.lib.semantic_unload_model(good["model"][0], 0, ffi.NULL)
        elif name != "semantic_init":
            library.take(library.out(name, good))
    options.struct_size = size + 400
    for position in (size, size + 399):
        memory[position] = b"\x01"
        assert "does not know" in refused(library, name, arguments)
        memory[position] = b"\0"
    memory[size + 400] = b"\x01"  # beyond the struct: none of our business
    good = models.arguments(name) | {"options": options}
    assert library.call(name, good) == Status.OK
    if name not in ("semantic_init", "semantic_load_model"):
        library.take(library.out(name, good))


def test_the_enums_of_the_options_are_all_there() -> None:
    assert {field for _, field, _ in enum_fields()} == {
        *("log_level", "task", "precision", "adapter_mode", "long_text", "shorten", "output"),
        "normalize",
    }


@pytest.mark.parametrize(("struct", "field", "enum"), enum_fields(), ids=str)
def test_unknown_enum_values(
    library: Library, models: Models, struct: str, field: str, enum: type[IntEnum]
) -> None:
    for name in having("options"):
        if options_of(name) != struct:
            continue
        for value in (-1, max(enum) + 1, 2**31 - 1, -(2**31)):
            arguments = models.arguments(name)
            arguments["options"] = library.options(struct, {field: value})
            message = refused(library, name, arguments)
            assert f"{field} is {value}; it may be " in message
            assert all(f"{member.value} ({member.name})" in message for member in enum)


@pytest.mark.parametrize("name", having("timeout_ms"))
@pytest.mark.parametrize("timeout", [-1, -(2**63)])
def test_negative_timeouts(library: Library, models: Models, name: str, timeout: int) -> None:
    arguments = models.arguments(name) | {"timeout_ms": timeout}
    assert "timeout_ms is negative" in refused(library, name, arguments)
    good = models.arguments("semantic_classify")  # nothing was unloaded
    library.result_of("semantic_classify", good)


@pytest.mark.parametrize("name", having("options"))
def test_negative_timeouts_in_options(library: Library, models: Models, name: str) -> None:
    struct = options_of(name)
    if struct == "semantic_init_options":
        arguments = models.arguments(name)
        arguments["options"] = library.options(struct, {"queue_rows": -1})
        assert "queue_rows is -1" in refused(library, name, arguments)
        return
    arguments = models.arguments(name)
    arguments["options"] = library.options(struct, {"timeout_ms": -5})
    assert "timeout_ms is -5" in refused(library, name, arguments)


@pytest.mark.parametrize("name", having("timeout_ms"))
def test_the_longest_timeout(library: Library, models: Models, name: str) -> None:
    arguments = models.arguments(name) | {"timeout_ms": 2**63 - 1}
    assert library.call(name, arguments) == Status.OK


def test_init_again_with_the_same_and_with_other_options(library: Library, models: Models) -> None:
    assert library.call("semantic_init", models.arguments("semantic_init")) == Status.OK
    for values in ({}, {"device": ""}):
        same = models.arguments("semantic_init")
        same["options"] = library.options("semantic_init_options", values)
        assert library.call("semantic_init", same) == Status.OK
    other = models.arguments("semantic_init")
    other["options"] = library.options("semantic_init_options", {"intra_op_threads": 3})
    refused(library, "semantic_init", other, Status.ALREADY_EXISTS)
    other["options"] = library.options("semantic_init_options", {"environment": "/nowhere"})
    message = refused(library, "semantic_init", other, Status.ALREADY_EXISTS)
    assert "cannot move to /nowhere" in message
    assert library.lib.semantic_cleanup(1000, library.ffi.NULL) == Status.OK
    other["options"] = library.options("semantic_init_options", {"intra_op_threads": 3})
    assert library.call("semantic_init", other) == Status.OK
