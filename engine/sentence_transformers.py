"""Read what sentence-transformers puts beside a model: modules, pooling, dense layers, prompts.

``modules.json`` lists the steps from tokens to a vector; each step has a folder with its own
``config.json``. Keys, defaults and the order in which pooled vectors are joined are those of
sentence-transformers (``base/modules``, ``sentence_transformer/modules``), both the form with
one flag per pooling mode and the newer ``pooling_mode``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TypeVar

from .descriptions import Description, file_size, read_description, read_json, stays_inside
from .errors import BadArtifactError, NotFoundError, UnsupportedError

POOLING_FOLDER = "1_Pooling"
PICKLE_REMEDY = "save it again with safe_serialization=True, which writes model.safetensors"

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_TRANSFORMER_OPTIONS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_PACKAGE = "sentence_transformers."
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_CHAIN = re.compile(r"Transformer Pooling(?: Dense)*(?: Normalize)?")
_POOLING_MODES = {  # flag to newer name, in the order in which the pooled vectors are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MEAN = "pooling_mode_mean_tokens"
_TORCH = "torch.nn."
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")
# What a transformer module may say of its output, and of how it calls the tokenizer.
_TOKEN_STATES: Mapping[str, object] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config.text": {"method": "forward", "method_output_name": "last_hidden_state"},
}
_CALL_OPTIONS = frozenset({"padding", "padding_side", "pad_to_multiple_of", "return_tensors"})
_MAX_PROMPT = 10_000
_STREAM = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class Module:
    """One step of ``modules.json``: its class, and its folder ("" = root).

    ``kind`` is the last component of the class where it belongs to sentence-transformers.
    """

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Dense:
    """One dense layer after pooling: ``activation(x @ weight.T + bias)``.

    ``weights`` is a safetensors file with ``linear.weight`` of shape [out_features, in_features]
    and, with ``bias``, ``linear.bias`` of shape [out_features].
    """

    weights: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class EmbeddingHead:
    """What turns token states into one vector.

    ``pooling``: names of the modes that are on, as the flags of ``1_Pooling/config.json``.
    ``normalize``: None where the files do not say. ``hidden_size`` and ``width``: dimensions
    before and after, 0 = unknown. ``described``: files of the folder say how to pool.
    ``files``: names, relative to the folder, of what it needs.
    """

    pooling: tuple[str, ...]
    dense: tuple[Dense, ...]
    normalize: bool | None
    hidden_size: int
    width: int
    described: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    files: tuple[str, ...]
    warnings: tuple[str, ...]


NO_HEAD = EmbeddingHead((), (), None, 0, 0, False, MappingProxyType({}), None, (), ())


def read_modules(folder: Path) -> tuple[Module, ...] | None:
    """Read ``modules.json``; None where the folder has none."""
    path = folder / _MODULES
    if file_size(path) is None:
        return None
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadArtifactError(f"{path} does not hold a list of objects; fetch the file again")
    modules = []
    for entry in entries:
        description = Description(path, entry)
        kind = _required(description, "type", description.get("type", str))
        place = description.get("path", str) or ""
        if not stays_inside(place):
            raise BadArtifactError(f"{path}: 'path' is {place!r}; it must stay in the folder")
        # Another package's class may do anything, whatever its name.
        package, _, name = kind.rpartition(".")
        known = not package or kind.startswith(_PACKAGE)
        modules.append(Module(name if known else kind, place))
    return tuple(modules)


def transformer_folder(folder: Path, modules: tuple[Module, ...] | None) -> Path:
    """Return where configuration, tokenizer and weights lie: the folder or one inside it."""
    if not modules:
        return folder
    if modules[0].kind != "Transformer":
        raise UnsupportedError(
            f"{folder / _MODULES} begins with a module {modules[0].kind!r}; supported is "
            "Transformer"
        )
    return folder / modules[0].path


def read_transformer_options(folder: Path) -> Description | None:
    """Read ``sentence_bert_config.json`` (or its older names): length limit, lower-casing."""
    for name in _TRANSFORMER_OPTIONS:
        if (description := read_description(folder / name)) is not None:
            return description
    return None


def check_transformer_options(options: Description, *, embeds: bool) -> None:
    """Refuse options that give other tokens than the model's own, or other states to pool.

    The keys are those that sentence-transformers writes from version 5.5 on.
    """
    calls = options.get("processing_kwargs", dict) or {}
    for scope in ("common", "text"):
        given = calls.get(scope) or {}
        if not isinstance(given, dict) or not given.keys() <= _CALL_OPTIONS:
            raise UnsupportedError(
                f"{options.path}: 'processing_kwargs.{scope}' is {given!r:.100}; supported are "
                f"{', '.join(sorted(_CALL_OPTIONS))}"
            )
    stated = {key: options.values.get(key) for key in _TOKEN_STATES}
    if (modalities := options.get("modality_config", dict)) is not None:
        stated["modality_config.text"] = modalities.get("text", "absent")
    for key, value in stated.items() if embeds else ():
        if value is not None and value != _TOKEN_STATES[key]:
            raise UnsupportedError(
                f"{options.path}: {key!r} is {value!r:.100}; supported is {_TOKEN_STATES[key]!r}"
            )


def read_embedding_head(
    folder: Path, modules: tuple[Module, ...] | None, hidden_size: int
) -> EmbeddingHead:
    """Read all that follows the token states; ``hidden_size`` 0 means unknown.

    Without any pooling file the head is a mean over the tokens, with a warning, as in
    sentence-transformers.
    """
    prompts = read_description(folder / _PROMPTS)
    texts, default = _read_prompts(prompts)
    steps = _steps(folder, modules)
    files = [_MODULES] if modules is not None else []
    files += [_PROMPTS] if prompts is not None else []
    pooling: tuple[str, ...] = (_MEAN,)
    warnings = [f"{folder.name} has no pooling file; mean pooling is used"] if not steps else []
    dense: list[Dense] = []
    width = hidden_size
    for step in steps:
        place = PurePosixPath(step.path)
        config = read_description(folder / place / "config.json")
        if config is None:
            if step.kind == "Normalize":  # it has no parameters; its folder is often left out
                continue
            missing = folder / place / "config.json"
            raise NotFoundError(f"{missing} is missing, {_MODULES} lists it; fetch the folder")
        files.append(str(place / "config.json"))
        if step.kind == "Pooling":
            pooling, hidden_size = _read_pooling(config, hidden_size, bool(any(texts.values())))
            width = hidden_size * len(pooling)
            if not _names_mode(config):
                warnings.append(f"{config.path} names no pooling mode; mean pooling is used")
        elif step.kind == "Dense":
            dense.append(_read_dense(config, width))
            width = dense[-1].out_features
            files.append(str(place / dense[-1].weights.name))
        else:
            _require_stream(config)
    normalize = None if modules is None else any(step.kind == "Normalize" for step in steps)
    return EmbeddingHead(
        pooling=pooling,
        dense=tuple(dense),
        normalize=normalize,
        hidden_size=hidden_size,
        width=width,
        described=bool(steps),
        prompts=MappingProxyType(texts),
        default_prompt_name=default,
        files=tuple(files),
        warnings=tuple(warnings),
    )


def has_pooling(folder: Path, modules: tuple[Module, ...] | None) -> bool:
    """Tell whether the files describe pooling, which makes the model an embedding model."""
    if modules is not None:
        return any(module.kind == "Pooling" for module in modules)
    return file_size(folder / POOLING_FOLDER / "config.json") is not None


def _steps(folder: Path, modules: tuple[Module, ...] | None) -> tuple[Module, ...]:
    """Return the steps after the transformer, in an order that this library can follow."""
    if modules is None:
        return (Module("Pooling", POOLING_FOLDER),) if has_pooling(folder, None) else ()
    for module in modules:
        if module.kind not in _KINDS:
            known = ", ".join(_KINDS)
            raise UnsupportedError(
                f"{folder / _MODULES} lists a module {module.kind!r}; supported are {known}"
            )
    order = " ".join(module.kind for module in modules)
    if not _CHAIN.fullmatch(order):
        raise UnsupportedError(
            f"{folder / _MODULES} lists {order or 'nothing'}; supported is Transformer, Pooling, "
            "then Dense layers, then Normalize"
        )
    return modules[1:]


def _read_pooling(
    config: Description, hidden_size: int, prompted: bool
) -> tuple[tuple[str, ...], int]:
    """Return the pooling modes and the width of the token states."""
    key = "word_embedding_dimension"
    key = "embedding_dimension" if "embedding_dimension" in config.values else key
    width = _required(config, key, config.positive(key))
    if hidden_size and width != hidden_size:
        raise BadArtifactError(
            f"{config.path}: {key!r} is {width}, hidden_size of config.json is {hidden_size}; "
            "the folder mixes two models"
        )
    if config.get("include_prompt", bool) is False and prompted:
        raise UnsupportedError(
            f"{config.path}: 'include_prompt' is false; pooling without the prompt is not supported"
        )
    listed = config.values.get("pooling_mode")
    if listed is None:
        flags = tuple(flag for flag in _POOLING_MODES if config.get(flag, bool))
        return flags or (_MEAN,), width
    names = [listed] if isinstance(listed, str) else config.get("pooling_mode", list)
    flags = tuple(flag for flag, mode in _POOLING_MODES.items() if mode in (names or ()))
    if not names or [_POOLING_MODES[flag] for flag in flags] != names:
        raise UnsupportedError(
            f"{config.path}: 'pooling_mode' is {listed!r}; supported are, in this order, "
            f"{', '.join(_POOLING_MODES.values())}"
        )
    return flags, width


def _names_mode(config: Description) -> bool:
    """Tell whether a pooling description chooses any mode."""
    return any(config.values.get(key) for key in ("pooling_mode", *_POOLING_MODES))


def _read_dense(config: Description, width: int) -> Dense:
    """Read a dense layer that takes vectors of ``width`` (0: unknown)."""
    _require_stream(config)
    if config.get("use_residual", bool):
        raise UnsupportedError(f"{config.path}: 'use_residual' is true; it is not supported")
    inner, outer = (
        _required(config, key, config.positive(key)) for key in ("in_features", "out_features")
    )
    if width and inner != width:
        raise BadArtifactError(
            f"{config.path}: 'in_features' is {inner}, the step before it gives {width}; "
            "the folder mixes two models"
        )
    activation = config.get("activation_function", str)
    if activation is None:  # the class's default, or an explicit null
        activation = "Identity" if "activation_function" in config.values else "Tanh"
    elif not activation.startswith(_TORCH):
        raise UnsupportedError(
            f"{config.path}: 'activation_function' is {activation!r:.100}, supported are classes "
            f"of {_TORCH}*: {', '.join(_ACTIVATIONS)}"
        )
    activation = activation.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{config.path}: activation {activation!r} is not supported; supported are "
            f"{', '.join(_ACTIVATIONS)}"
        )
    weights = config.path.with_name("model.safetensors")
    if file_size(weights) is None:
        if file_size(config.path.with_name("pytorch_model.bin")) is not None:
            raise BadArtifactError(f"{weights.parent} has only a pickle; {PICKLE_REMEDY}")
        raise NotFoundError(f"{weights} is missing; fetch the folder again")
    return Dense(weights, inner, outer, config.get("bias", bool) is not False, activation)


def _require_stream(config: Description) -> None:
    """Refuse a module that does not read and write the sentence vector."""
    for key in ("module_input_name", "module_output_name"):
        if (name := config.get(key, str)) not in (None, _STREAM):
            raise UnsupportedError(f"{config.path}: {key!r} is {name!r}; supported is {_STREAM}")


def _read_prompts(config: Description | None) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default one."""
    if config is None:
        return {}, None
    prompts = config.get("prompts", dict) or {}
    texts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    if len(texts) < len(prompts):
        raise BadArtifactError(f"{config.path}: 'prompts' must map names to texts; correct it")
    if longest := [name for name, text in texts.items() if len(text) > _MAX_PROMPT]:
        raise BadArtifactError(
            f"{config.path}: the prompt {longest[0]!r:.100} has {len(texts[longest[0]])} "
            f"characters, at most {_MAX_PROMPT} are put before each text; correct it"
        )
    default = config.get("default_prompt_name", str)
    if default is not None and default not in texts:
        raise BadArtifactError(
            f"{config.path}: 'default_prompt_name' is {default!r}, 'prompts' has "
            f"{', '.join(map(repr, sorted(texts))) or 'nothing'}"
        )
    return texts, default


_Value = TypeVar("_Value")


def _required(config: Description, key: str, value: _Value | None) -> _Value:
    """Return ``value``, or refuse the file that lacks it."""
    if value is None:
        raise BadArtifactError(f"{config.path}: {key!r} is missing; fetch the file again")
    return value
