"""Compose the library once Python runs: one registry, attached to every export."""

import atexit
from importlib import import_module

from libsemantic.engine.config import LogLevel
from libsemantic.engine.errors import InterpreterError, Status
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.registry import REGISTRY
from libsemantic.engine.session import first_run

from .candle.attach import FAILED, candle_entries
from .codecs import FFI, Lib
from .native import Boundary

_PREFIX = "py_"
_CANCEL_EVERYTHING = "py_cancel_everything"
_OPAQUE = frozenset({"MLPHandle"})  # cffi ends the process where their fields are asked for


def start(ffi: FFI, lib: Lib) -> None:
    """Attach every declared function, run ONNX Runtime once, report to the C side."""
    _realise_types(ffi)
    boundary = Boundary(ffi, lib, REGISTRY)
    entries = boundary.entries()
    of_candle = candle_entries(ffi, lib, REGISTRY)
    declared = {name for name in dir(lib) if name.startswith(_PREFIX)} - {_CANCEL_EVERYTHING}
    attached = {_PREFIX + name for name in entries} | of_candle.keys()
    if declared != attached:
        raise InterpreterError(
            f"the library and its Python side differ in {sorted(declared ^ attached)}; "
            "rebuild the library"
        )
    for name, entry in entries.items():
        ffi.def_extern(
            name=_PREFIX + name, error=int(Status.INTERNAL), onerror=boundary.report_escape
        )(entry if name == "semantic_cancel" else boundary.guard(entry))
    for name, entry in of_candle.items():
        ffi.def_extern(name=name, error=FAILED, onerror=boundary.report_escape)(entry)
    ffi.def_extern(name=_CANCEL_EVERYTHING, onerror=boundary.report_escape)(
        REGISTRY.cancel_everything
    )

    def write_log(level: LogLevel, message: str) -> None:
        line = message.encode("utf-8", "replace")
        lib.boundary_log(int(level), line, len(line))

    REGISTRY.log.send_to(write_log)
    atexit.register(lib.boundary_end_calls)
    # A load needs it. Its exit handlers are registered here so that ours, registered after them,
    # run before them: they free memory, which a signal may have come in the middle of.
    import_module("onnx")
    first_run()
    REGISTRY.set_interpreter_bytes(max(0, resident_bytes() - lib.boundary_resident_before_start()))
    lib.boundary_report_start(ffi.NULL)


def _realise_types(ffi: FFI) -> None:
    """Build every type now: cffi builds them on first use, which is not safe in a race."""
    typedefs, structs, unions = ffi.list_types()
    for name in typedefs + structs + unions:
        ctype = ffi.typeof(name)
        if ctype.kind == "struct" and name not in _OPAQUE:
            for _, field in ctype.fields:
                _ = field.type.cname
        ffi.typeof(f"{name} *")
        ffi.typeof(f"{name} * *")
