"""Choose the output of an ONNX file that answers a task: by its name, else by its rank."""

from .config import Task
from .errors import BadArtifactError
from .onnx_file import FLOAT_TYPES, OnnxFile, OnnxOutput

POOLED_OUTPUT = "sentence_embedding"
_NAMED_OUTPUTS = {  # in order of preference, with the rank that fits
    Task.SEQUENCE_CLASSIFICATION: (("logits", 2),),
    Task.TOKEN_CLASSIFICATION: (("logits", 3),),
    Task.EMBEDDING: ((POOLED_OUTPUT, 2), ("last_hidden_state", 3), ("token_embeddings", 3)),
}
_RANKS = {Task.SEQUENCE_CLASSIFICATION: 2, Task.TOKEN_CLASSIFICATION: 3, Task.EMBEDDING: 3}


def select_output(
    file: OnnxFile, task: Task, width: int = 0, *, prefer_tokens: bool = False
) -> OnnxOutput:
    """Choose the output that answers ``task``: by name, else by rank and last dimension.

    ``width`` is the number of labels, for embeddings the hidden size (0 = unknown).
    ``prefer_tokens`` takes token states before an already pooled vector. An output that is also
    an input or holds no floats is never chosen; an undeclared rank fits any, and is to be
    checked at run time. Raises BadArtifactError, listing the outputs, unless exactly one fits.
    """
    usable = _usable(file)
    if (named := _named(usable, task, prefer_tokens)) is not None:
        return named
    ranked = [output for output in usable if output.rank == _RANKS[task]]
    for fits in (
        [output for output in ranked if width and output.width == width],
        [output for output in ranked if not width or output.width is None],
        [output for output in usable if output.rank is None],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            break
    wanted = f"rank {_RANKS[task]}" + (f" and last dimension {width}" if width else "")
    listed = ", ".join(_described(output) for output in file.outputs)
    raise BadArtifactError(
        f"{file.path}: no single output is the one for {task.name.lower()} (float, {wanted}); the "
        f"outputs are {listed}; name it {_NAMED_OUTPUTS[task][-1][0]!r} when exporting"
    )


def named_task(file: OnnxFile) -> Task:
    """Return the only task that the names of the outputs speak for; AUTO where none or several."""
    usable = [output for output in _usable(file) if output.rank is not None]
    tasks = [task for task in _NAMED_OUTPUTS if _named(usable, task, False) is not None]
    return tasks[0] if len(tasks) == 1 else Task.AUTO


def _usable(file: OnnxFile) -> list[OnnxOutput]:
    """Return the outputs that can be an answer."""
    inputs = {value.name for value in file.inputs}
    return [out for out in file.outputs if out.dtype in FLOAT_TYPES and out.name not in inputs]


def _named(outputs: list[OnnxOutput], task: Task, prefer_tokens: bool) -> OnnxOutput | None:
    """Return the first output whose name says that it answers ``task``."""
    names = _NAMED_OUTPUTS[task]
    for name, rank in sorted(names, key=lambda item: -item[1]) if prefer_tokens else names:
        for output in outputs:
            if output.name == name and output.rank in (None, rank):
                return output
    return None


def _described(output: OnnxOutput) -> str:
    """Return name, type, rank and last dimension of an output for a message."""
    rank = "?" if output.rank is None else output.rank
    return f"{output.name!r} ({output.dtype}, rank {rank}, last {output.width or '?'})"
