"""A Python whose engine fails on demand under every exported function.

fault_host.py MODE REPORT writes what C answered as JSON; modes are the keys of MODES.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import libsemantic.ffi
from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY, Registry
from libsemantic.ffi import bootstrap
from libsemantic.ffi.codecs import FFI, CData, Lib
from libsemantic.ffi.generate import PLAIN_C
from libsemantic.ffi.native import Boundary, Entry

from .binding import FUNCTIONS, MODEL_OF, WITH_A_RESULT, Library
from .harness import Models

Answer = dict[str, object]
Report = dict[str, object]


def fails(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


FAULTS: dict[str, Callable[[], object]] = {
    "RuntimeError": fails(RuntimeError("the user's text")),
    "KeyError": fails(KeyError("the user's text")),
    "MemoryError": fails(MemoryError()),
    "SystemExit": fails(SystemExit(3)),
    "KeyboardInterrupt": fails(KeyboardInterrupt()),
    "GeneratorExit": fails(GeneratorExit()),
    "RecursionError": fails(RecursionError()),
    "None": lambda: None,
    "object": object,
    "text": lambda: "text",
    "-1": lambda: -1,
    "99": lambda: 99,
    "2**70": lambda: 2**70,
    "0": lambda: 0,
}


class Switch:
    """Stands before functions: as long as a fault is set, it happens in their place."""

    def __init__(self) -> None:
        self.fault: Callable[[], object] | None = None

    def before(self, function: Callable[..., object]) -> Callable[..., object]:
        def guarded(*arguments: object) -> object:
            return function(*arguments) if self.fault is None else self.fault()

        return guarded


def ask(
    library: Library, models: Models, name: str, switch: Switch, fault: Callable[[], object]
) -> Answer:
    """Call while the fault happens, then without it."""
    arguments = models.arguments(name)
    switch.fault = fault
    status = library.call(name, arguments)
    switch.fault = None
    out = library.out(name, arguments)
    answer: Answer = {
        "name": name,
        "status": Status(status).name,
        "message": library.message(arguments["error"]) if "error" in arguments else None,
        "empty": out in (None, 0, library.ffi.NULL),
    }
    arguments = models.arguments(name)
    answer["then"] = Status(library.call(name, arguments)).name
    out = library.out(name, arguments)
    if isinstance(out, library.ffi.CData):
        library.lib.semantic_free(out)
    library.lib.semantic_cleanup(1000, library.ffi.NULL)
    models.forget()
    return answer


def ask_all(library: Library, switch: Switch) -> Report:
    models = Models(library)
    answers: dict[str, list[Answer]] = {}
    for fault, happens in FAULTS.items():
        answers[fault] = []
        for name in FUNCTIONS:
            if name not in PLAIN_C:
                answers[fault].append(ask(library, models, name, switch, happens))
        require_right_calls(library, models)
    return {"answers": answers, "unfreed": unfreed(library)}


def require_right_calls(library: Library, models: Models) -> None:
    """Classify 1,000 times; label and score are those of the references each time."""
    arguments = models.arguments("semantic_classify")
    arguments |= {"texts": library.texts(b"What is the derivative of x squared?"), "n": 1}
    for _ in range(1000):
        assert library.call("semantic_classify", arguments) == Status.OK
        result = arguments["result"][0]
        assert result.label_index[0] == 0
        assert abs(result.score[0] - 0.514327) < 1e-4
        library.lib.semantic_free(result)
    library.lib.semantic_cleanup(1000, library.ffi.NULL)
    models.forget()


def unfreed(library: Library) -> int:
    stats = library.result_of(
        "semantic_get_stats", library.good_arguments("semantic_get_stats", 0, "")
    )
    return int(stats["results_unfreed"])


def registry_fails(library: Library) -> Report:
    """Every public method of the registry is the fault's place."""
    switch = Switch()
    for name in dir(Registry):
        method = getattr(REGISTRY, name)
        if not name.startswith("_") and callable(method):
            setattr(REGISTRY, name, switch.before(method))
    return ask_all(library, switch)


Entries = Mapping[str, Callable[..., object]]


def change_entries(change: Callable[[dict[str, Entry]], Entries]) -> None:
    original = Boundary.entries

    def entries(self: Boundary) -> Entries:
        return change(original(self))

    mock.patch.object(Boundary, "entries", entries).start()


def entries_fail(library: Library) -> Report:
    """The functions that C calls are the fault's place."""
    switch = Switch()

    def change(entries: dict[str, Entry]) -> Entries:
        return {name: switch.before(entry) for name, entry in entries.items()}

    change_entries(change)
    return ask_all(library, switch)


def entries_fail_late(library: Library) -> Report:
    """A result is there already when its entry fails."""
    late = True

    def fail_late(entry: Entry) -> Entry:
        def failing(*arguments: CData) -> int:
            status = entry(*arguments)
            if late:
                raise RuntimeError
            return status

        return failing

    def change(entries: dict[str, Entry]) -> Entries:
        return entries | {name: fail_late(entries[name]) for name in WITH_A_RESULT}

    change_entries(change)
    models = Models(library)
    answers = []
    for name in WITH_A_RESULT:
        arguments = models.arguments(name)
        status = Status(library.call(name, arguments))
        empty = library.out(name, arguments) == library.ffi.NULL
        answers.append({"name": name, "status": status.name, "empty": empty})
    late = False
    return {"answers": answers, "unfreed": unfreed(library)}


def one_is_missing(library: Library) -> Report:
    """One entry is not attached."""
    change_entries(lambda entries: {n: e for n, e in entries.items() if n != "semantic_embed"})
    return refused_calls(library)


def one_too_many(library: Library) -> Report:
    """An entry is attached that the library does not declare."""
    change_entries(lambda entries: entries | {"semantic_dream": entries["semantic_embed"]})
    return refused_calls(library)


def the_start_fails(library: Library) -> Report:
    """The environment is broken: a module cannot be imported."""
    delattr(libsemantic.ffi, "bootstrap")
    mock.patch.dict(sys.modules, {"libsemantic.ffi.bootstrap": None}).start()
    return refused_calls(library)


def the_start_exits(library: Library) -> Report:
    mock.patch.object(bootstrap, "first_run", fails(SystemExit(0))).start()
    return refused_calls(library)


def refused_calls(library: Library) -> Report:
    """What every function answers when the start has failed."""
    answers = []
    for name in FUNCTIONS:
        if name in PLAIN_C:
            continue
        arguments = library.good_arguments(name, 1, MODEL_OF.get(name, "nobody"))
        status = library.call(name, arguments)
        out = library.out(name, arguments)
        answers.append(
            {
                "name": name,
                "status": Status(status).name,
                "message": library.message(arguments["error"]) if "error" in arguments else None,
                "empty": out in (None, 0, library.ffi.NULL),
            }
        )
    return {"answers": answers}


class Counting:
    """A cffi FFI that counts what is attached."""

    def __init__(self, ffi: FFI) -> None:
        self._ffi = ffi
        self.attached: Counter[str] = Counter()

    def __getattr__(self, name: str) -> CData:
        return getattr(self._ffi, name)

    def def_extern(self, name: str, error: int | None = None, onerror: CData = None) -> CData:
        self.attached[name] += 1
        return self._ffi.def_extern(name=name, error=error, onerror=onerror)


def composition(library: Library) -> Report:
    """Count how often each function is attached."""
    started = []
    original = bootstrap.start

    def start(ffi: FFI, lib: Lib) -> None:
        counting = Counting(ffi)
        started.append(counting)
        original(counting, lib)

    mock.patch.object(bootstrap, "start", start).start()
    for _ in range(3):
        assert library.call("semantic_init", library.good_arguments("semantic_init", 0, "")) == 0
    return {"starts": len(started), "attached": dict(started[0].attached)}


MODES = {
    mode.__name__: mode
    for mode in (
        registry_fails,
        entries_fail,
        entries_fail_late,
        one_is_missing,
        one_too_many,
        the_start_fails,
        the_start_exits,
        composition,
    )
}

if __name__ == "__main__":
    report = MODES[sys.argv[1]](Library())
    Path(sys.argv[2]).write_text(json.dumps(report))
