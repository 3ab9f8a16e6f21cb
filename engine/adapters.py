"""Read what PEFT writes about a LoRA adapter: which layers of which base it changes, by how much.

Keys and their meaning are those of ``LoraConfig`` of PEFT. What would change the arithmetic in a
way that is not built here is refused by the name of its key.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from .config import Task
from .descriptions import Description, file_size, read_description, read_json
from .errors import BadArtifactError, NotFoundError, UnsupportedError

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ALL_LINEAR: Final = "all-linear"

_TASKS: Final = {
    None: Task.AUTO,
    "SEQ_CLS": Task.SEQUENCE_CLASSIFICATION,
    "TOKEN_CLS": Task.TOKEN_CLASSIFICATION,
    "FEATURE_EXTRACTION": Task.EMBEDDING,
}
# Values that change nothing, beside an absent, false or empty one.
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "bias": ("none",),
    # What only begins a training; others have changed the weights of the base, too.
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(
        (
            *("alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config"),
            *("layer_replication", "lora_bias", "monteclora_config", "target_parameters"),
            *("trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "velora_config"),
        ),
        (),
    ),
}
# Keys that say how the adapter was trained or saved.
_SILENT: Final = frozenset(
    {
        *("auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode"),
        *("loftq_config", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core"),
        *("peft_version", "qalora_group_size", "revision", "runtime_config"),
    }
)
_READ: Final = frozenset(
    {
        *("alpha_pattern", "base_model_name_or_path", "exclude_modules", "layers_pattern"),
        *("layers_to_transform", "lora_alpha", "modules_to_save", "peft_type", "r"),
        *("rank_pattern", "target_modules", "task_type", "use_rslora"),
    }
)
_LABEL_KEYS: Final = ("id2label", "label2id", "num_labels", "_num_labels")
# What an adapter may say of its head, and what must be as in the base.
_HEAD_KEYS: Final = (
    *_LABEL_KEYS,
    *("classifier_activation", "classifier_bias", "classifier_pooling", "problem_type"),
)
_ENCODER_KEYS: Final = (
    *("model_type", "vocab_size", "hidden_size", "dim", "num_hidden_layers", "n_layers"),
    *("num_attention_heads", "n_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("hidden_dim", "max_position_embeddings", "type_vocab_size"),
)
_MOST_NAMES: Final = 4096  # in one list or table
_MOST_CHARACTERS: Final = 2000
_MOST_STEPS: Final = 1_000_000  # that an expression may take for one name
_LONGEST_NAME: Final = 64
_MAX_RANK: Final = 1 << 16
# An escape, a class, the end of a group if it is repeated, a repetition, a special group.
_PARTS: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\)(?=[*+{]))|([*+]\??|\{[^}]*\}\??|(?<!\()\?)|(\(\?[^:])"
)


@dataclass(frozen=True, slots=True)
class Adapter:
    """What ``adapter_config.json`` says, checked.

    ``base_name``: what it records as its base, "" for nothing. ``task``: AUTO where it says none.
    ``targets`` and ``excluded``: names of modules, or one regular expression. ``layers``: numbers
    of the layers that are changed, None for all; ``layer_lists``: names before these numbers.
    ``saved``: names of modules that the adapter replaces as a whole.
    """

    config_path: Path
    weights_path: Path
    base_name: str
    task: Task
    rank: int
    ranks: Mapping[str, int]
    alpha: float
    alphas: Mapping[str, float]
    stabilised: bool
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str
    layers: frozenset[int] | None
    layer_lists: tuple[str, ...]
    saved: tuple[str, ...]
    warnings: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's update."""
        return self.ranks.get(_key_of(self.ranks, module), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what a module's update is multiplied by."""
        alpha = self.alphas.get(_key_of(self.alphas, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.stabilised else alpha / rank

    def saves(self, *names: str) -> bool:
        """Tell whether a module, or one around it, is listed in ``modules_to_save``.

        ``names`` are all that it may have there: with the prefix of the family and without.
        """
        return any(f".{saved}." in f".{name}." for saved in self.saved for name in names)

    def changes(self, *names: str) -> bool:
        """Tell whether a linear layer, under one of its names, has an update in the adapter."""
        if self.saves(*names) or any(_listed(self.excluded, name) for name in names):
            return False
        return self.targets == ALL_LINEAR or any(map(self._targets, names))

    def _targets(self, module: str) -> bool:
        found = _listed(self.targets, module)
        if not found or self.layers is None or isinstance(self.targets, str):
            return found
        return self._layer_of(module) in self.layers

    def _layer_of(self, module: str) -> int | None:
        parts = module.split(".")
        for index, part in enumerate(parts[1:], 1):
            before = parts[index - 1]
            if part.isdecimal() and (not self.layer_lists or before in self.layer_lists):
                return int(part)
        return None


def is_adapter(folder: Path, stored: bool) -> bool:
    """Tell whether a folder is an adapter; with weights of its own (``stored``) it is a model."""
    return not stored and file_size(folder / ADAPTER_CONFIG) is not None


def read_adapter(folder: Path) -> Adapter:
    """Read and check ``adapter_config.json``.

    Raises UnsupportedError for a kind of adapter that is not built here, BadArtifactError for what
    is damaged and NotFoundError for missing files.
    """
    path = folder / ADAPTER_CONFIG
    config = read_description(path)
    if config is None:
        raise NotFoundError(f"{path} is missing; fetch the adapter again")
    weights = folder / ADAPTER_WEIGHTS
    if file_size(weights) is None:
        if file_size(folder / "adapter_model.bin") is not None:
            raise BadArtifactError(
                f"{folder} has its weights only as a pickle (adapter_model.bin), which can run "
                "code; load the adapter with PEFT and save it again"
            )
        raise NotFoundError(f"{weights} is missing; fetch the adapter again")
    kind = config.get("peft_type", str)
    if kind != "LORA":
        raise UnsupportedError(f"{path}: 'peft_type' is {kind!r:.60}; supported is 'LORA'")
    task = config.get("task_type", str)
    if task not in _TASKS:
        known = ", ".join(repr(name) for name in _TASKS if name)
        raise UnsupportedError(f"{path}: 'task_type' is {task!r:.60}; supported are {known}")
    return Adapter(
        config_path=path,
        weights_path=weights,
        base_name=config.get("base_model_name_or_path", str) or "",
        task=_TASKS[task],
        rank=_rank(config, "r", config.values.get("r")),
        ranks={
            key: _rank(config, f"rank_pattern.{key}", value)
            for key, value in _patterns(config, "rank_pattern").items()
        },
        alpha=_number(config, "lora_alpha", config.values.get("lora_alpha")),
        alphas={
            key: _number(config, f"alpha_pattern.{key}", value)
            for key, value in _patterns(config, "alpha_pattern").items()
        },
        stabilised=config.get("use_rslora", bool) or False,
        targets=_targets(config),
        excluded=_names(config, "exclude_modules"),
        layers=_layers(config),
        layer_lists=_list(config, "layers_pattern"),
        saved=_list(config, "modules_to_save", texts=False),
        warnings=_refuse_others(config),
    )


def adapt_config(adapter: Adapter, base: Description, own: Description | None) -> Description:
    """Return the base's configuration with what the adapter's folder says of its head.

    ``own`` is the ``config.json`` beside the adapter; ``label_mapping.json`` may hold some of its
    keys. An adapter with a head of its own takes none of the base's labels. Raises
    BadArtifactError where ``own`` describes another encoder than that of the base.
    """
    for key in _ENCODER_KEYS:
        found, expected = None if own is None else own.values.get(key), base.values.get(key)
        if own is not None and found is not None and expected is not None and found != expected:
            raise BadArtifactError(
                f"{own.path}: {key!r} is {found!r:.60}, the base {base.path.parent} has "
                f"{expected!r:.60}; the adapter belongs to another base"
            )
    path = adapter.config_path.parent / "label_mapping.json"
    content = read_json(path) if file_size(path) is not None else None
    stated = {} if own is None else {key: own.values.get(key) for key in _HEAD_KEYS}
    for key, value in content.items() if isinstance(content, dict) else ():
        if key not in _HEAD_KEYS or key in ("id2label", "label2id"):  # read_labels compares them
            continue
        if own is not None and stated.get(key) not in (None, value):
            raise BadArtifactError(
                f"{path}: {key!r} is {value!r:.60}, config.json beside it says "
                f"{stated[key]!r:.60}; correct one"
            )
        stated[key] = value
    values = dict(base.values)
    if adapter.saved:
        for key in (*_LABEL_KEYS, "problem_type"):
            values.pop(key, None)
    values |= {key: value for key, value in stated.items() if value is not None}
    return Description(base.path, MappingProxyType(values))


def _refuse_others(config: Description) -> tuple[str, ...]:
    """Refuse values of keys that would change the arithmetic; return a warning for unknown keys."""
    unknown = []
    for key, value in config.values.items():
        if key in _READ or key in _SILENT or not value:
            continue
        allowed = _ONLY.get(key)
        if allowed is None and not key.startswith("use_"):
            unknown.append(key)
        elif not any(type(value) is type(each) and value == each for each in allowed or ()):
            fitting = [repr(each) for each in allowed or ()] or ["null", "false"]
            raise UnsupportedError(
                f"{config.path}: {key!r} is {value!r:.80}, which is not supported; supported is "
                f"{' or '.join(fitting)}; merge the adapter into its base with PEFT"
            )
    if not unknown:
        return ()
    listed = ", ".join(map(repr, unknown[:8]))
    return (f"{config.path.name} has keys that are not known and not followed: {listed:.500}",)


def _targets(config: Description) -> tuple[str, ...] | str:
    targets = _names(config, "target_modules")
    if not targets:
        raise BadArtifactError(
            f"{config.path}: 'target_modules' names no module; fetch the adapter again"
        )
    return targets


def _names(config: Description, key: str) -> tuple[str, ...] | str:
    """Return names of modules, or the regular expression that stands for them."""
    value = config.values.get(key)
    if not isinstance(value, str):
        return _list(config, key, texts=False)
    if value != ALL_LINEAR:
        _require_simple(config, key, value)
    return value


def _list(config: Description, key: str, *, texts: bool = True) -> tuple[str, ...]:
    """Return a list of texts; with ``texts`` one text alone is a list too."""
    value = config.values.get(key)
    values = [value] if texts and isinstance(value, str) and value else value or []
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise BadArtifactError(f"{config.path}: {key!r} must list names of modules; correct it")
    if len(values) > _MOST_NAMES:
        raise BadArtifactError(f"{config.path}: {key!r} lists more than {_MOST_NAMES} names")
    return tuple(dict.fromkeys(values))


def _patterns(config: Description, key: str) -> dict[str, object]:
    """Return a table whose keys are regular expressions."""
    table = config.get(key, dict) or {}
    if len(table) > _MOST_NAMES:
        raise BadArtifactError(f"{config.path}: {key!r} has more than {_MOST_NAMES} keys")
    for pattern in table:
        _require_simple(config, key, pattern)
    return table


def _require_simple(config: Description, key: str, pattern: str) -> None:
    """Refuse an expression that is none, or that could take for ever: Python's matcher goes back.

    Of n repetitions in a name of m letters there are at most (m + n over n) ways; groups have as
    many as the products of their alternatives.
    """
    try:
        if len(pattern) > _MOST_CHARACTERS:
            raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
        parts = list(_PARTS.finditer(pattern))
        if any(part[1] or part[3] for part in parts):
            raise ValueError("it repeats a group, or has a special one")
        repeats = sum(part[2] is not None for part in parts)
        groups, choices = max(pattern.count("("), 1), pattern.count("|")
        ways = math.comb(_LONGEST_NAME + repeats, repeats)
        if repeats > 8 or groups > 32 or ways * (choices / groups + 1) ** groups > _MOST_STEPS:
            raise ValueError("it repeats and chooses too much")
        re.compile(pattern)
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        raise UnsupportedError(
            f"{config.path}: {key!r} holds a regular expression that is not supported: {error}; "
            "list the modules by name"
        ) from None


def _layers(config: Description) -> frozenset[int] | None:
    value = config.values.get("layers_to_transform")
    values = [value] if type(value) is int else value
    if values is None or values == []:
        return None
    if not isinstance(values, list) or not all(type(each) is int for each in values):
        raise BadArtifactError(
            f"{config.path}: 'layers_to_transform' must list numbers of layers; correct it"
        )
    return frozenset(values)


def _rank(config: Description, key: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_RANK:
        raise BadArtifactError(
            f"{config.path}: {key!r} is {value!r:.60}; a rank is a whole number of 1 to {_MAX_RANK}"
        )
    return value


def _number(config: Description, key: str, value: object) -> float:
    if type(value) in (int, float) and isinstance(value, int | float) and abs(value) < 1e30:
        return float(value)
    raise BadArtifactError(f"{config.path}: {key!r} is {value!r:.60}, not a number; correct it")


def _listed(names: tuple[str, ...] | str, module: str) -> bool:
    """Tell whether a module is one of these names, or ends in one, or fits the expression."""
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return any(f".{module}".endswith(f".{name}") for name in names)


def _key_of(table: Mapping[str, object], module: str) -> str:
    """Return the first key of a pattern table that fits the module or an end of its name."""
    starts = [0, *(match.end() for match in re.finditer(r"\.", module))]
    for key in table:
        pattern = re.compile(key)
        if any(pattern.fullmatch(module, start) for start in starts):
            return key
    return ""
