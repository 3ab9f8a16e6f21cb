"""Bind the verbs to the functions of the table, once, when Python starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from libsemantic.engine.errors import InternalError, InvalidArgumentError, as_semantic_error
from libsemantic.engine.registry import Registry

from ..codecs import FFI, Lib
from ..native import Entry
from . import (
    batches,
    classifying,
    embedding,
    finding,
    grounding,
    loading,
    selecting,
    similarity,
    validating,
    variants,
)
from .answers import Answer, Interned, Memory, answer_for
from .arguments import Arguments
from .context import Context, Verb
from .selectors import Selectors
from .slots import Slots
from .table import FREE, PLAIN, ROWS, Row, Slot

PREFIX = "py_candle_"
FAILED = 1

_MODULES = (
    *(batches, classifying, embedding, finding, grounding, loading, selecting, similarity),
    *(validating, variants),
)
VERBS: Mapping[str, Verb] = {verb.__name__: verb for module in _MODULES for verb in module.VERBS}


def candle_entries(ffi: FFI, lib: Lib, registry: Registry) -> dict[str, Entry]:
    """Return the Python side of each function that Python answers, by its C name."""
    memory = Memory(ffi, lib)
    labels, slots, selectors = Interned(ffi), Slots(registry), Selectors()
    return {
        PREFIX + row.function: _entry(ffi, lib, memory, Context(row, slots, labels, selectors))
        for row in ROWS
        if row.verb not in (FREE, PLAIN)
    }


def _entry(ffi: FFI, lib: Lib, memory: Memory, context: Context) -> Entry:
    row = context.row
    verb = VERBS[row.verb]
    declared = ffi.typeof(getattr(lib, PREFIX + row.function))
    inputs = len(declared.args)
    answer: Answer | None = None
    if row.failure != "":
        inputs -= 1
        answer = answer_for(ffi, memory, declared.args[-1])
    arguments = Arguments(ffi, verb, inputs)
    if arguments.count != inputs and not arguments.variadic:
        raise InternalError(
            f"{row.function} has {inputs} arguments, verb {row.verb} reads {arguments.count}"
        )
    log, where = context.slots.registry.log, _where(row)

    def report(raised: BaseException, given: Sequence[Any]) -> None:
        failure = as_semantic_error(raised)
        log.warning(f"{where}: {failure.message}")
        if answer is not None and given[-1]:
            answer.fail(failure.message, given[-1])

    def entry(*given: Any) -> int:
        try:
            if answer is None:
                verb(context, *arguments.read(given))
            elif given[-1]:
                answer.write(verb(context, *arguments.read(given)), given[-1])
            else:
                raise InvalidArgumentError("the result pointer is NULL; pass a pointer")
        except BaseException as raised:  # the boundary never throws
            # A local variable that holds it would be a cycle through its traceback.
            report(raised, given)
            return FAILED
        return 0

    return entry


def _where(row: Row) -> str:
    """Return function and slots, for the log."""
    names = ", ".join(Slot.model_name(slot) for slot in row.slots)
    return f"{row.function} ({names})" if names else row.function
