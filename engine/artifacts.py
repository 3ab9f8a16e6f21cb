"""Read a model folder in Hugging Face layout and decide what it is: one frozen ``ModelSpec``.

Family and task come from the folder's own descriptions, never from a guess by name. What
contradicts itself inside a folder is an error, or a warning where one side is known to win.
Only safetensors and ONNX files are read; weights themselves stay closed.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter
from .config import Precision, Task
from .descriptions import Description, file_size, read_description
from .errors import (
    BadArtifactError,
    NotFoundError,
    UnsupportedError,
)
from .labels import Labels, read_labels
from .matryoshka import NOTHING_SMALLER, read_smaller
from .onnx_file import OnnxFile, OnnxOutput
from .onnx_outputs import POOLED_OUTPUT, named_task, select_output
from .sentence_transformers import (
    NO_HEAD,
    Dense,
    EmbeddingHead,
    check_transformer_options,
    has_pooling,
    read_embedding_head,
    read_transformer_options,
)
from .sources import find_sources, resolve_folder
from .weight_files import choose_weights

_TASK_OF_SUFFIX = {
    "ForSequenceClassification": Task.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "LMHeadModel": None,
    "DoubleHeadsModel": None,
    "EncoderDecoderModel": None,
    "Model": Task.EMBEDDING,
}
_HIDDEN_SIZE_KEYS = ("hidden_size", "dim", "d_model", "n_embd")
_POSITION_KEYS = ("max_position_embeddings", "n_positions")
# Families whose first position is pad_token_id + 1; their configuration classes default it to 1.
_OFFSET_POSITIONS = {"camembert", "data2vec-text", "ibert", "longformer", "mpnet", "xmod"} | {
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
}
# Tokenizer classes, without "Fast", that give a model no token types whatever tokenizer.json says.
_WITHOUT_TYPES = frozenset(
    {"TokenizersBackend", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"}
)
_PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model folder says about itself, checked for contradictions.

    ``folder`` is free of links; ``model_folder`` (``folder``, or the transformer's subfolder)
    holds configuration, tokenizer and weights. ``labels`` is None for embeddings. For
    ``source`` "onnx", ``onnx`` holds the facts of the file and ``output`` the output that
    answers; an output of rank 2 of an embedding model is pooled already and has no ``pooling``.
    ``pooling`` names flags of ``1_Pooling/config.json``. ``normalize``: None where the files do
    not say. ``embedding_size``: native dimension, ``dimensions``: smaller ones allowed besides,
    ``layers``: numbers of layers, less than all, after which a call may ask for an answer.
    ``position_limit`` in tokens; 0 stands for unknown in all sizes. ``lower_case``: texts are
    lower-cased before the tokenizer. ``token_types``: the second text of a pair is of type 1.
    ``files``: (name relative to ``folder``, bytes) of all that
    the load needs; ``weight_bytes``: the bytes of the weight files among them.

    Where ``adapter`` is not None, ``folder`` is that of the adapter and ``model_folder`` that of
    its base, from which come all the facts that the adapter does not state itself. ``base_files``
    are the configuration and the weights of the base, ``base_bytes`` the bytes of the latter.
    """

    folder: Path
    model_folder: Path
    name: str
    family: str
    architecture: str
    config: Mapping[str, object]
    task: Task
    labels: Labels | None
    multi_label: bool
    tokenizer_path: Path
    source: Literal["safetensors", "onnx"]
    weights_path: Path
    onnx: OnnxFile | None
    output: OnnxOutput | None
    pooling: tuple[str, ...]
    dense: tuple[Dense, ...]
    normalize: bool | None
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    embedding_size: int
    dimensions: tuple[int, ...]
    layers: tuple[int, ...]
    hidden_size: int
    position_limit: int
    default_max_tokens: int
    pad_token_id: int | None
    pad_token: str | None
    lower_case: bool
    token_types: bool
    files: tuple[tuple[str, int], ...]
    weight_bytes: int
    warnings: tuple[str, ...]
    adapter: Adapter | None
    base_files: tuple[Path, ...]
    base_bytes: int


def read_artifact(
    path: str,
    *,
    task: Task,
    precision: Precision,
    families: Collection[str],
    base_path: str = "",
    unnamed_labels: int = 0,
) -> ModelSpec:
    """Read and check the model folder, or the adapter folder, at ``path``.

    ``families`` are the values of ``model_type`` whose graph can be built from safetensors;
    ``base_path``, for adapters, is the folder of the base where it is not the recorded one;
    ``unnamed_labels`` as ``unnamed`` of ``read_labels``.
    Raises InvalidArgumentError for a path that is no folder, NotFoundError for what is missing
    or cannot be read, BadArtifactError for what is damaged or contradicts itself and
    UnsupportedError for what this library, or this artifact for ``task``, cannot do.
    """
    folder = resolve_folder(path)
    sources = find_sources(folder, base_path)
    model_folder, config, adapter = sources.model_folder, sources.config, sources.adapter
    tokenizer_path = sources.tokenizer_folder / "tokenizer.json"
    if file_size(tokenizer_path) is None:
        raise NotFoundError(
            f"{sources.tokenizer_folder} has no tokenizer.json; load the tokenizer with "
            "transformers as a fast one and write it with tokenizer.save_pretrained"
        )
    family = config.get("model_type", str) or ""
    weights = choose_weights(model_folder, config, family, families, precision)
    if adapter is not None and weights.onnx is not None:
        raise UnsupportedError(
            f"{model_folder} gives {weights.path.name}, an adapter needs its base in fp32, fp16 or "
            "bf16 safetensors of a family that is built from them; merge the adapter with PEFT"
        )
    architecture = _architecture(config)
    pooled = has_pooling(sources.head_folder, sources.modules)
    if adapter is not None and adapter.task is not Task.AUTO:
        task = _require_task(adapter, task)
    else:
        task = _decide_task(sources.own, task, _architecture(sources.own), pooled, weights.onnx)
    labels: Labels | None = None
    label_warnings: tuple[str, ...] = ()
    head, output = NO_HEAD, None
    if task is Task.EMBEDDING:
        hidden_size = _size(config, _HIDDEN_SIZE_KEYS)
        head = read_embedding_head(sources.head_folder, sources.modules, hidden_size)
        if weights.onnx is not None:
            output = select_output(
                weights.onnx, task, head.hidden_size, prefer_tokens=bool(head.dense)
            )
            head = _fit_head(head, weights.path, output)
    else:
        labels, label_warnings = read_labels(
            sources.label_folder,
            sources.own,
            without_config=adapter is not None,
            unnamed=unnamed_labels,
        )
        if weights.onnx is not None:
            output = select_output(weights.onnx, task, len(labels.names))
            if output.width is not None:
                labels.require_width(output.width, f"output {output.name!r} of {weights.path}")
    tokenizer_config = read_description(sources.tokenizer_folder / "tokenizer_config.json")
    options = read_transformer_options(sources.options_folder)
    if options is not None:
        check_transformer_options(options, embeds=task is Task.EMBEDDING)
    position_limit = _position_limit(config, family)
    inputs = () if weights.onnx is None else (each.name for each in weights.onnx.inputs)
    if family in _OFFSET_POSITIONS and "position_ids" in inputs:
        raise UnsupportedError(
            f"{weights.path} takes position_ids, which {family} counts from its padding id; "
            "export the model without that input"
        )
    smaller = NOTHING_SMALLER
    if task is Task.EMBEDDING:
        smaller = read_smaller(model_folder, config, head.width, head.pooling)
    described = (config, tokenizer_config, options, smaller.manifest)
    needed = [item.path for item in described if item is not None]
    needed += [tokenizer_path, *(sources.head_folder / name for name in head.files)]
    needed += [sources.label_folder / labels.file] if labels is not None else []
    stored = list(weights.files)
    if adapter is not None:
        needed.append(adapter.config_path)
        stored.append(adapter.weights_path)
    sizes = {each: file_size(each) or 0 for each in (*needed, *stored)}
    return ModelSpec(
        folder=folder,
        model_folder=model_folder,
        name=folder.name,
        family=family,
        architecture=architecture,
        config=config.values,
        task=task,
        labels=labels,
        multi_label=task is Task.SEQUENCE_CLASSIFICATION and _is_multi_label(config, labels),
        tokenizer_path=tokenizer_path,
        source=weights.source,
        weights_path=weights.path,
        onnx=weights.onnx,
        output=output,
        pooling=head.pooling,
        dense=head.dense,
        normalize=head.normalize,
        prompts=head.prompts,
        default_prompt_name=head.default_prompt_name,
        embedding_size=head.width,
        dimensions=smaller.dimensions,
        layers=smaller.layers,
        hidden_size=head.hidden_size or _size(config, _HIDDEN_SIZE_KEYS),
        position_limit=position_limit,
        default_max_tokens=_default_length(model_folder, tokenizer_config, options, position_limit),
        pad_token_id=_pad_token_id(config),
        pad_token=None if tokenizer_config is None else _pad_token(tokenizer_config),
        lower_case=options is not None and options.get("do_lower_case", bool) is True,
        token_types=_token_types(tokenizer_config),
        files=tuple(sorted((os.path.relpath(at, folder), size) for at, size in sizes.items())),
        weight_bytes=sum(sizes[file] for file in stored),
        warnings=(
            *weights.warnings,
            *head.warnings,
            *label_warnings,
            *(_unused_adapter(model_folder) if adapter is None else adapter.warnings),
        ),
        adapter=adapter,
        base_files=() if adapter is None else (config.path, *weights.files),
        base_bytes=0 if adapter is None else sum(sizes[file] for file in weights.files),
    )


def _unused_adapter(folder: Path) -> tuple[str, ...]:
    """Warn of an adapter that lies beside weights of a whole model."""
    if file_size(folder / ADAPTER_WEIGHTS) is None or file_size(folder / ADAPTER_CONFIG) is None:
        return ()
    return (f"the folder has weights of its own, so its adapter ({ADAPTER_WEIGHTS}) is not used",)


def _require_task(adapter: Adapter, asked: Task) -> Task:
    """Return the task that an adapter was trained for, which must be the one asked for."""
    if asked in (Task.AUTO, adapter.task):
        return adapter.task
    raise UnsupportedError(
        f"{adapter.config_path}: the adapter is made for {adapter.task.name.lower()}, not for "
        f"{asked.name.lower()}"
    )


def _architecture(config: Description) -> str:
    """Return the first of ``architectures``, "" where there is none."""
    first = (config.get("architectures", list) or [""])[0]
    if not isinstance(first, str):
        raise BadArtifactError(f"{config.path}: 'architectures' must list texts; correct it")
    return first


def _decide_task(
    config: Description, asked: Task, architecture: str, pooled: bool, onnx: OnnxFile | None
) -> Task:
    """Return the task asked for if the artifact can do it; for AUTO the one it is made for."""
    suffixes = (known for known in _TASK_OF_SUFFIX if architecture.endswith(known))
    own = _TASK_OF_SUFFIX.get(next(suffixes, ""))
    found = ([Task.EMBEDDING] if pooled else []) + ([own] if own is not None else [])
    possible = list(dict.fromkeys(found))
    if asked is not Task.AUTO:
        if asked in possible or not architecture:
            return asked
        raise UnsupportedError(
            f"{config.path}: a model of architecture {architecture!r} cannot do "
            f"{asked.name.lower()}; it can do "
            f"{', '.join(task.name.lower() for task in possible) or 'no task of this library'}"
        )
    if possible:
        return possible[0]
    if architecture:
        raise UnsupportedError(
            f"{config.path}: architecture {architecture!r} is not supported; supported are "
            f"*ForSequenceClassification, *ForTokenClassification and *Model"
        )
    named = Task.AUTO if onnx is None else named_task(onnx)
    if named is Task.AUTO:
        raise BadArtifactError(
            f"{config.path}: 'architectures' is missing and nothing else tells the task; pass task"
        )
    return named


def _fit_head(head: EmbeddingHead, path: Path, output: OnnxOutput) -> EmbeddingHead:
    """Return the head with what the graph does itself taken out; widths must agree.

    A pooled output is the end of the whole chain: exporters write it after the dense layers.
    """
    pooled = output.rank == 2 or (output.rank is None and output.name == POOLED_OUTPUT)
    expected = head.hidden_size
    if pooled:
        expected = head.width if head.described else 0
    if output.width and expected and output.width != expected:
        raise BadArtifactError(
            f"output {output.name!r} of {path} has width {output.width}, the descriptions say "
            f"{expected}; the folder mixes two models"
        )
    width = output.width or expected
    if pooled:
        return replace(head, pooling=(), dense=(), width=width, warnings=())
    return replace(head, hidden_size=width, width=head.width or width * len(head.pooling))


def _size(config: Description, keys: tuple[str, ...]) -> int:
    """Return the first of ``keys`` that the configuration has, 0 for none."""
    return next((size for key in keys if (size := config.positive(key)) is not None), 0)


def _position_limit(config: Description, family: str) -> int:
    """Return how many tokens have a position, 0 for unknown."""
    positions = _size(config, _POSITION_KEYS)
    if not positions or family not in _OFFSET_POSITIONS:
        return positions
    padding = _pad_token_id(config)
    limit = positions - (1 if padding is None else padding) - 1
    if limit < 1:
        raise BadArtifactError(
            f"{config.path}: {positions} positions leave none beyond pad_token_id {padding}; "
            "correct it"
        )
    return limit


def _default_length(
    folder: Path, tokenizer: Description | None, options: Description | None, positions: int
) -> int:
    """Return the smallest length in tokens that the artifact declares."""
    declared = (
        None if tokenizer is None else tokenizer.length("model_max_length"),
        None if options is None else options.length("max_seq_length"),
        positions or None,
    )
    lengths = [length for length in declared if length is not None]
    if not lengths:
        raise BadArtifactError(
            f"{folder} declares no length; set model_max_length in tokenizer_config.json, "
            "max_seq_length in sentence_bert_config.json or max_position_embeddings in config.json"
        )
    return min(lengths)


def _pad_token_id(config: Description) -> int | None:
    """Return ``pad_token_id``; None where the configuration does not say."""
    return config.bounded("pad_token_id", 0)


def _pad_token(config: Description) -> str | None:
    """Return the text of the pad token, which is written plainly or as an object."""
    if isinstance(config.values.get("pad_token"), dict):
        token = config.get("pad_token", dict) or {}
        return Description(config.path, token).get("content", str)
    return config.get("pad_token", str)


def _is_multi_label(config: Description, labels: Labels | None) -> bool:
    """Tell whether several labels may hold at once."""
    problem = config.get("problem_type", str)
    if problem not in (None, *_PROBLEMS):
        raise BadArtifactError(
            f"{config.path}: 'problem_type' is {problem!r}; it is one of {', '.join(_PROBLEMS)}"
        )
    if problem == "regression" and labels is not None and len(labels.names) > 1:
        raise UnsupportedError(f"{config.path}: 'problem_type' is regression of several values")
    return problem == "multi_label_classification"


def _token_types(tokenizer_config: Description | None) -> bool:
    """Tell whether the reference feeds the tokenizer's token types to the model.

    transformers feeds what ``model_input_names`` lists. A tokenizer class of an architecture
    brings its own list, which has them wherever the model makes use of them; the generic class
    of transformers 5 leaves them out.
    """
    if tokenizer_config is None:
        return True
    names = tokenizer_config.get("model_input_names", list)
    if names is not None:
        return "token_type_ids" in names
    kind = tokenizer_config.get("tokenizer_class", str) or ""
    return kind.removesuffix("Fast") not in _WITHOUT_TYPES
