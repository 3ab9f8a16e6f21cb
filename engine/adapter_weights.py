"""Read the weights of a LoRA adapter and fit them to those of its base.

PEFT writes ``base_model.model.`` before the name of a module of the model it adapts. Models with a
head call their encoder by a prefix, such as ``bert.``, which an encoder alone does not have: it is
left out on both sides here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import numpy as np

from .adaptation import Adaptation, Part, Update
from .adapters import ALL_LINEAR, Adapter
from .errors import BadArtifactError, UnsupportedError
from .weights import Tensor, load_array, read_file

if TYPE_CHECKING:
    from .graphs import Graph

_PEFT: Final = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_REFUSED: Final = {  # what stands in the names of tensors of other kinds of adapters
    ".lora_embedding_": "LoRA of an embedding",
    ".lora_magnitude_vector": "DoRA (use_dora)",
    ".lora_B.bias": "a bias of LoRA (lora_bias)",
    ".token_adapter.": "trained tokens (trainable_token_indices)",
}
# Heads that a base may have and its adapter does not use.
_HEADS: Final = ("classifier.*", "pre_classifier.*", "score.*", "head.*", "qa_outputs.*")
_REMEDY: Final = "the adapter belongs to another base, or is damaged"


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedWeights:
    """Weights of base and adapter together, by names without prefix.

    ``weights`` are those of the base that the adapter does not replace, and its ``own``.
    ``updates``: by name of the linear layer; ``full_names``: as the adapter calls the layer.
    Those of layers that match ``ignorable`` may be there for nothing.
    """

    adapter: Adapter
    prefix: str
    base: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    own: frozenset[str]
    updates: Mapping[str, Update]
    full_names: Mapping[str, str]
    ignorable: Sequence[str]

    def adaptation(self, part: Part, spare: Sequence[str]) -> Adaptation:
        """Return how to build ``part`` with the adapter; ``spare`` weights may stay unused."""
        return Adaptation(part, self.updates, self.own, (*spare, *_HEADS))

    def check(self, graph: "Graph") -> None:
        """Compare the adapter with the linear layers of the model that was built with it."""
        path = self.adapter.weights_path
        for name, update in self.updates.items():
            if name in graph.linears:
                self._check_shapes(graph, name, update)
            elif not _ignored(name, self.ignorable):
                raise BadArtifactError(
                    f"{path} has an update of {self.full_names[name]!r}, which is no linear layer "
                    f"of the base; {_REMEDY}"
                )
        for name in graph.linears.keys() - self.updates.keys():
            needed = name in graph.encoder_linears or self.adapter.targets != ALL_LINEAR
            if needed and self.adapter.changes(name, f"{self.prefix}{name}"):
                raise BadArtifactError(
                    f"{path} lacks the update of {name!r}, a linear layer of the base that "
                    f"'target_modules' of {self.adapter.config_path.name} names; {_REMEDY}"
                )
        if strange := sorted(self.own & graph.encoder_weights):
            raise UnsupportedError(
                f"{path} replaces {strange[0]!r} ('modules_to_save'), which is no part of a head; "
                "merge the adapter into its base with PEFT"
            )

    def _check_shapes(self, graph: "Graph", name: str, update: Update) -> None:
        inputs, outputs = graph.linears[name]
        rank = self.adapter.rank_of(self.full_names[name])
        config = self.adapter.config_path.name
        for kind, matrix, axis in (("A", update.down, 0), ("B", update.up, 1)):
            if matrix.shape[axis] != rank:
                raise BadArtifactError(
                    f"{self.adapter.weights_path}: lora_{kind} of {self.full_names[name]!r} has "
                    f"rank {matrix.shape[axis]}, {config} says {rank} ('r' or 'rank_pattern'); "
                    f"{_REMEDY}"
                )
        for kind, matrix, axis, size in (
            ("A", update.down, 1, inputs),
            ("B", update.up, 0, outputs),
        ):
            if matrix.shape[axis] != size.value:
                raise BadArtifactError(
                    f"{self.adapter.weights_path}: lora_{kind} of {self.full_names[name]!r} has "
                    f"shape {list(matrix.shape)}, the base has {size.value} there ({size.key}); "
                    f"{_REMEDY}"
                )


def read_adapted_weights(
    adapter: Adapter, base: Mapping[str, Tensor], prefix: str, ignorable: Sequence[str]
) -> AdaptedWeights:
    """Read the adapter's file and join it with the weights of its base.

    ``prefix`` begins the names of the family's encoders in models with a head; ``ignorable`` are
    patterns of names of weights that its task may not need. Raises
    BadArtifactError for tensors that are no part of a LoRA adapter or lack their counterpart, and
    UnsupportedError for those of other kinds of adapters.
    """
    path = adapter.weights_path
    stored = _without_prefix(base, prefix)
    pairs: dict[str, dict[str, Tensor]] = {}
    own: dict[str, Tensor] = {}
    for name, tensor in read_file(path).items():
        for mark, meaning in _REFUSED.items():
            if mark in name:
                raise UnsupportedError(f"{path} has {name!r}: {meaning} is not supported")
        if not name.startswith(_PEFT):
            raise BadArtifactError(f"{path} has {name!r}, which is no weight of PEFT; {_REMEDY}")
        inside = name.removeprefix(_PEFT)
        for kind in (_DOWN, _UP):
            if inside.endswith(kind):
                pairs.setdefault(inside.removesuffix(kind), {})[kind] = tensor
                break
        else:
            _require_saved(adapter, inside)
            own[inside.removeprefix(prefix)] = tensor
    if not pairs:
        raise BadArtifactError(f"{path} has no update of any layer; {_REMEDY}")
    for name in pairs:
        weight = f"{name.removeprefix(prefix)}.weight"
        known = weight in stored or weight in own
        if not known and not _ignored(name.removeprefix(prefix), ignorable):
            folder = next(iter(base.values())).path.parent
            raise BadArtifactError(
                f"{path} has an update of {name!r}, the base {folder} has no weight {weight!r}; "
                f"{_REMEDY}"
            )
    updates = {name.removeprefix(prefix): _update(adapter, name, pairs[name]) for name in pairs}
    replaced = {name.rpartition(".")[0] for name in own}
    kept = {
        name: tensor
        for name, tensor in stored.items()
        if (module := name.rpartition(".")[0]) not in replaced
        and not adapter.saves(module, f"{prefix}{module}")
    }
    return AdaptedWeights(
        adapter=adapter,
        prefix=prefix,
        base=stored,
        weights=kept | own,
        own=frozenset(own),
        updates=updates,
        full_names={name.removeprefix(prefix): name for name in pairs},
        ignorable=ignorable,
    )


def _ignored(linear: str, ignorable: Sequence[str]) -> bool:
    return any(fnmatchcase(f"{linear}.weight", pattern) for pattern in ignorable)


def _without_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights of a base by names without the prefix."""
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        short = name.removeprefix(prefix)
        if short in named:
            raise BadArtifactError(
                f"{tensor.path.parent} has {short!r} with and without {prefix!r} before it; fetch "
                "the model again"
            )
        named[short] = tensor
    return named


def _require_saved(adapter: Adapter, name: str) -> None:
    """Refuse a tensor that is neither an update nor of a module that the adapter replaces.

    PEFT compares the ends of names letter by letter: "classifier" means "pre_classifier", too.
    """
    parts = name.split(".")
    modules = [".".join(parts[:count]) for count in range(1, len(parts))]
    if not any(module.endswith(saved) for module in modules for saved in adapter.saved):
        listed = ", ".join(adapter.saved) or "nothing"
        raise BadArtifactError(
            f"{adapter.weights_path} has {name!r}, which is neither lora_A nor lora_B nor of a "
            f"module in 'modules_to_save' ({listed:.200}); {_REMEDY}"
        )


def _update(adapter: Adapter, module: str, pair: Mapping[str, Tensor]) -> Update:
    """Read the two matrices of a module's update, the scale multiplied into the second."""
    path = adapter.weights_path
    for kind, other in ((_DOWN, _UP), (_UP, _DOWN)):
        if kind not in pair:
            raise BadArtifactError(
                f"{path} has {_PEFT + module + other!r} without {module + kind!r}; {_REMEDY}"
            )
        if len(pair[kind].shape) > 2:
            raise UnsupportedError(
                f"{path}: {module + kind!r} has shape {list(pair[kind].shape)}: LoRA of a "
                "convolution is not supported; merge the adapter into its base with PEFT"
            )
        if len(pair[kind].shape) != 2:
            raise BadArtifactError(
                f"{path}: {module + kind!r} has shape {list(pair[kind].shape)}, not a matrix's; "
                f"{_REMEDY}"
            )
    if not adapter.changes(module):
        raise BadArtifactError(
            f"{path} has an update of {module!r}, {adapter.config_path.name} names no such module "
            f"in 'target_modules' or takes it out; {_REMEDY}"
        )
    with np.errstate(over="ignore"):
        up = load_array(pair[_UP]) * np.float32(adapter.scale_of(module))
    update = Update(load_array(pair[_DOWN]), up)
    if not np.isfinite(update.down).all() or not np.isfinite(update.up).all():
        raise BadArtifactError(
            f"{path}: the update of {module!r} holds NaN or infinity, or its scale makes it so; "
            f"{_REMEDY}"
        )
    return update
