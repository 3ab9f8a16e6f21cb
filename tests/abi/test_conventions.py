"""What the top of the header promises of every function, asked of every function."""

import numpy as np
import pytest

from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY
from libsemantic.ffi.generate import OPTIONAL, PLAIN_C, Parameter

from .binding import FUNCTIONS, GOOD, MODELS, ROOT, Library, having, pointers
from .harness import Models, is_empty, refused

NEVER_ISSUED = 1 << 40
HARMLESS_NULLS = {*OPTIONAL, "callback", "user", "block"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_good_call_of_every_function(library: Library, models: Models, name: str) -> None:
    arguments = models.arguments(name)
    assert library.call(name, arguments) == GOOD[name]
    if "error" in arguments:
        assert arguments["error"].status == Status.OK
        assert arguments["error"].input_index == -1
        assert library.message(arguments["error"]) == ""
        assert library.out(name, arguments) not in (0, library.ffi.NULL)
    for p in FUNCTIONS[name].parameters:
        if p.is_out and p.pointers == 2:
            assert library.read(arguments[p.name][0])
            library.lib.semantic_free(arguments[p.name][0])


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, p) for name in FUNCTIONS for p in pointers(name)], ids=str
)
def test_null_in_every_position(
    library: Library, models: Models, name: str, parameter: Parameter
) -> None:
    arguments = models.arguments(name)
    arguments[parameter.name] = library.ffi.NULL
    if parameter.name in HARMLESS_NULLS:
        assert library.call(name, arguments) == GOOD[name]
        out = next((p for p in FUNCTIONS[name].parameters if p.is_out and p.pointers == 2), None)
        if out is not None:
            library.lib.semantic_free(arguments[out.name][0])
        return
    assert library.call(name, arguments) == Status.INVALID_ARGUMENT
    assert library.message(arguments["error"]) == f"{parameter.name} is NULL; pass a pointer"
    if not parameter.is_out:
        assert is_empty(library, name, arguments)
    arguments["error"] = library.ffi.NULL
    assert library.call(name, arguments) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("name", having("error"))
@pytest.mark.parametrize("size", [0, 1, 8, 1047])
def test_an_error_that_is_too_small_is_not_written_to(
    library: Library, models: Models, name: str, size: int
) -> None:
    arguments = models.arguments(name)
    error = arguments["error"]
    library.ffi.buffer(error)[:] = b"\xa5" * library.ffi.sizeof("semantic_error")
    error.struct_size = size
    before = bytes(library.ffi.buffer(error))
    assert library.call(name, arguments) == Status.INVALID_ARGUMENT
    assert bytes(library.ffi.buffer(error)) == before
    assert is_empty(library, name, arguments)


def test_a_larger_error_is_that_of_a_newer_caller(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_find_model")
    size = library.ffi.sizeof("semantic_error")
    memory = library.ffi.new("char[]", size + 16)
    memory[size : size + 16] = b"\xa5" * 16
    arguments["error"] = library.ffi.cast("semantic_error *", memory)
    arguments["error"].struct_size = size + 16
    arguments["name"] = library.text("nobody")
    assert "nobody" in refused(library, "semantic_find_model", arguments, Status.NOT_FOUND)
    assert library.ffi.buffer(memory)[size : size + 16] == b"\xa5" * 16


@pytest.mark.parametrize(
    "name", [name for name in having("model") if FUNCTIONS[name].parameters[0].name == "model"]
)
def test_handles(library: Library, models: Models, name: str) -> None:
    arguments = models.arguments(name)
    arguments["model"] = library.handle(0)
    assert "handle is 0" in refused(library, name, arguments)
    for handle in (NEVER_ISSUED, 2**64 - 1):
        arguments["model"] = library.handle(handle)
        assert str(handle) in refused(library, name, arguments, Status.NOT_FOUND)
    closing = models.arguments("semantic_unload_model")
    assert library.call("semantic_unload_model", closing) == Status.OK
    arguments["model"] = closing["model"]
    message = refused(library, name, arguments, Status.CLOSED)
    assert f"handle {closing['model'].id} is closed" in message


def test_a_handle_is_never_given_out_twice(library: Library, models: Models) -> None:
    seen = set()
    for _ in range(3):
        arguments = models.arguments("semantic_load_model")
        assert library.call("semantic_load_model", arguments) == Status.OK
        seen.add(arguments["model"].id)
        closing = models.arguments("semantic_unload_model") | {"model": arguments["model"][0]}
        assert library.call("semantic_unload_model", closing) == Status.OK
    assert len(seen) == 3
    assert 0 not in seen


@pytest.mark.parametrize("character", ["x", "é", "…", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_message_ends_at_a_character(
    library: Library, models: Models, character: str, shift: int
) -> None:
    arguments = models.arguments("semantic_find_model")
    name = "x" * shift + character * 2000
    arguments["name"] = library.text(name)
    message = refused(library, "semantic_find_model", arguments, Status.NOT_FOUND)
    assert message.endswith(character + "…")
    assert f"no model is named '{name}'".startswith(message[:-1])
    room = library.ffi.sizeof("semantic_error") - library.ffi.offsetof("semantic_error", "message")
    size = len(message.encode())
    assert 1024 - len(character.encode()) <= size < room <= 1032


def test_a_message_that_just_fits_is_whole(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_find_model")
    whole = "no model is named '{}'; load it first"
    name = "é" * ((1023 - len(whole.format(""))) // 2)
    name += "x" * (1023 - len(whole.format(name).encode()))
    arguments["name"] = library.text(name)
    message = refused(library, "semantic_find_model", arguments, Status.NOT_FOUND)
    assert message == whole.format(name)
    assert len(message.encode()) == 1023


def test_names_and_paths_are_utf8(library: Library, models: Models) -> None:
    for name, parameter in (("semantic_find_model", "name"), ("semantic_load_model", "path")):
        arguments = models.arguments(name)
        arguments[parameter] = library.ffi.new("char[]", b"mod\xe8le")
        assert f"{parameter} is not UTF-8 at byte 3" in refused(library, name, arguments)
        arguments[parameter] = library.text("")
        assert library.call(name, arguments) in (Status.INVALID_ARGUMENT, Status.NOT_FOUND)
    arguments = models.arguments("semantic_embed")
    options = library.options("semantic_run_options")
    bad = library.ffi.new("char[]", b"\xff")
    options.prompt_name = bad
    assert "prompt_name is not UTF-8" in refused(
        library, "semantic_embed", arguments | {"options": options}
    )


def test_status_names(library: Library) -> None:
    name = library.lib.semantic_status_name
    for status in Status:
        assert library.ffi.string(name(status)).decode() == status.name
        assert getattr(library.lib, f"SEMANTIC_{status.name}") == status
    for unknown in (-1, max(Status) + 1, 2**31 - 1, -(2**31)):
        assert library.ffi.string(name(unknown)) == b"UNKNOWN"


def test_versions(library: Library) -> None:
    header = (ROOT / "include" / "semantic.h").read_text()
    assert f'#define SEMANTIC_VERSION "{GOOD["semantic_version"]}"' in header
    assert library.lib.semantic_abi_version() == 0 << 16 | 1


def test_results_are_counted_until_they_are_freed(library: Library, models: Models) -> None:
    def unfreed() -> tuple[int, int]:
        stats = library.result_of("semantic_get_stats", models.arguments("semantic_get_stats"))
        return stats["results_unfreed"], stats["results_unfreed_bytes"]

    assert unfreed() == (0, 0)
    held = []
    for name in FUNCTIONS:
        if any(p.is_out and p.pointers == 2 for p in FUNCTIONS[name].parameters):
            arguments = models.arguments(name)
            assert library.call(name, arguments) == Status.OK
            held.append((library.ffi.typeof(library.out(name, arguments)).item, arguments, name))
    count, size = unfreed()
    assert count == len(held) == 10
    assert size > sum(library.ffi.sizeof(struct) for struct, _, _ in held)
    refused(library, "semantic_classify", models.arguments("semantic_classify") | {"n": 2**40})
    for left, (_, arguments, name) in enumerate(reversed(held)):
        library.lib.semantic_free(library.out(name, arguments))
        assert unfreed()[0] == count - 1 - left
    assert unfreed() == (0, 0)
    library.lib.semantic_free(library.ffi.NULL)
    assert unfreed() == (0, 0)


def test_results_live_on_without_their_model(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_classify")
    assert library.call("semantic_classify", arguments) == Status.OK
    result = library.out("semantic_classify", arguments)
    before = library.read(result)
    assert library.lib.semantic_cleanup(5000, library.ffi.NULL) == Status.OK
    after = library.take(result)
    assert after["labels"] == before["labels"]
    np.testing.assert_array_equal(after["probabilities"], before["probabilities"])


def test_the_registry_is_the_one_of_python(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_load_model")
    assert library.call("semantic_load_model", arguments) == Status.OK
    assert REGISTRY.find("bert-seq") == arguments["model"].id
    handle = REGISTRY.load(str(MODELS / "bert-token"))
    found = models.arguments("semantic_find_model") | {"name": library.text("bert-token")}
    assert library.call("semantic_find_model", found) == Status.OK
    assert found["model"].id == handle


def test_plain_c_functions_take_no_error() -> None:
    assert set(PLAIN_C) == {name for name in FUNCTIONS if name not in having("error")} - {
        "semantic_cancel"
    }
