"""What a load checks beyond the files by themselves: tokenizer, graph and answers fit together."""

from dataclasses import replace

from .artifacts import ModelSpec
from .batching import RunControl
from .config import LongText, Task
from .dense import DenseLayer
from .errors import (
    BadArtifactError,
    InvalidArgumentError,
    OutOfMemoryError,
    SemanticError,
)
from .opening import OpenGraph
from .postprocess import require_finite
from .session import Session
from .tokenization import Tokenizer
from .windows import plan_windows


def longest_window(spec: ModelSpec, opened: OpenGraph, asked: int) -> tuple[int, int]:
    """Return the longest window, ``asked`` or what the folder says, and the most it may be.

    Raise InvalidArgumentError where more is asked for.
    """
    limit = opened.position_limit or spec.position_limit or spec.default_max_tokens
    if asked > limit:
        raise InvalidArgumentError(
            f"max_tokens is {asked}, the model has {limit} positions; give {limit} or less"
        )
    return asked or min(spec.default_max_tokens or limit, limit), limit


def check_vocabulary(spec: ModelSpec, tokenizer: Tokenizer, opened: OpenGraph) -> ModelSpec:
    """Compare the tokenizer with the tables of the model; return the spec, perhaps with a warning.

    Special tokens may lie beyond the embeddings, as that of images does in EmbeddingGemma: a text
    with one of them is refused when it comes. Raise BadArtifactError where others do, or where
    pairs have more token types than the model.
    """
    rows = opened.vocab_size
    if rows and tokenizer.vocab_size > rows:
        found = f"{spec.tokenizer_path} has token ids up to {tokenizer.vocab_size - 1}, the model"
        (encoded,) = tokenizer.encode(["a"], False)
        if int(encoded.ids.max(initial=0)) >= rows or not tokenizer.only_added_from(rows):
            raise BadArtifactError(
                f"{found} has {rows} embeddings; use the tokenizer that belongs to the model"
            )
        warning = f"{found} has {rows} embeddings; texts with the added tokens beyond are refused"
        spec = replace(spec, warnings=(*spec.warnings, warning))
    if opened.type_vocab_size and spec.token_types and tokenizer.pair is not None:
        (pair,) = tokenizer.encode_pairs(["a"], ["a"], False)
        types = int(pair.type_ids.max(initial=0)) + 1
        if types > opened.type_vocab_size:
            raise BadArtifactError(
                f"{spec.tokenizer_path} gives pairs {types} token types, the model has "
                f"{opened.type_vocab_size}; use the tokenizer that belongs to the model"
            )
    return spec


def self_test(
    spec: ModelSpec,
    tokenizer: Tokenizer,
    session: Session,
    opened: OpenGraph,
    max_tokens: int,
    control: RunControl,
) -> int:
    """Score two texts in one run, after each number of layers; return the width of the output.

    Raise BadArtifactError for what fails or has another shape than task, labels and config say,
    OutOfMemoryError.
    """
    encodings = tokenizer.encode(["a", "a b"], False)  # in one run, so that one is padded
    if not all(encoded.token_count for encoded in encodings):
        raise BadArtifactError(
            f"{spec.tokenizer_path} makes no tokens of a text; use the tokenizer that belongs to "
            "the model"
        )
    windows = [plan_windows(e, max_tokens, LongText.CUT).windows[0] for e in encodings]
    try:
        for part in opened.model.parts:
            control.layer = part.layer
            require_finite(session.run(windows, control)[0])
        control.layer = 0
        output = session.run(windows, control)[0]
    except OutOfMemoryError:
        raise OutOfMemoryError(
            f"the system refused the memory for two short texts in {spec.folder}; free some, or "
            "use another model"
        ) from None
    except SemanticError as error:
        raise BadArtifactError(
            f"{spec.folder} fails its self-test with two texts in one run: {error.message}; export "
            "or fetch it again"
        ) from None
    rank = {
        Task.SEQUENCE_CLASSIFICATION: 1,
        Task.TOKEN_CLASSIFICATION: 2,
        Task.EMBEDDING: 2 if spec.pooling and not opened.pools else 1,
    }[spec.task]
    if output.ndim != rank:
        raise BadArtifactError(
            f"output {opened.model.output!r} of {spec.folder} has rank {output.ndim + 1}, "
            f"{spec.task.name} needs rank {rank + 1}; check the task"
        )
    require_finite(output)
    width = opened.width if opened.pools else int(output.shape[-1])
    if spec.labels is not None:
        spec.labels.require_width(width, f"output {opened.model.output!r}")
    elif spec.hidden_size and spec.pooling and width != spec.hidden_size:
        raise BadArtifactError(
            f"output {opened.model.output!r} is {width} wide, config.json says hidden_size "
            f"{spec.hidden_size}; use the files of one model"
        )
    return width


def embedding_dimension(spec: ModelSpec, dense: tuple[DenseLayer, ...], width: int) -> int:
    """Return the dimension of the vectors of token states of ``width``; 0 for other tasks.

    Raise BadArtifactError where the folder allows larger ones.
    """
    if spec.task is not Task.EMBEDDING:
        return 0
    dimension = dense[-1].weight.shape[0] if dense else width * max(1, len(spec.pooling))
    if max(spec.dimensions, default=0) > dimension:
        raise BadArtifactError(
            f"{spec.folder}: config.json allows {max(spec.dimensions)} dimensions, the model "
            f"gives {dimension}; correct its matryoshka dimensions"
        )
    return dimension
