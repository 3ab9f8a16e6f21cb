"""What a caller demands of a folder beyond the options of a load, held against its description."""

from dataclasses import replace

from .adapters import is_adapter
from .artifacts import ModelSpec
from .config import Demands, LoadOptions, Task
from .errors import BadArtifactError, UnsupportedError
from .sources import resolve_folder
from .weight_files import has_weights


def base_of(path: str, options: LoadOptions, demands: Demands) -> str:
    """Return the folder of the base, "" where the folder is no adapter or names its own."""
    if options.base_path or not demands.base_path:
        return options.base_path
    folder = resolve_folder(path)
    return demands.base_path if is_adapter(folder, has_weights(folder)) else ""


def apply_demands(
    spec: ModelSpec, options: LoadOptions, demands: Demands
) -> tuple[ModelSpec, LoadOptions]:
    """Return description and options with what is demanded.

    Raise UnsupportedError for a family, BadArtifactError for a number of labels that will not do.
    """
    if demands.families and spec.family not in demands.families:
        raise UnsupportedError(
            f"{spec.folder} is of family {spec.family!r}, {options.name} takes "
            f"{', '.join(sorted(demands.families))}; use the function for this family"
        )
    counted = demands.label_count and (demands.adapters_count or spec.adapter is None)
    found = 0 if spec.labels is None else len(spec.labels.names)
    if counted and found != demands.label_count:
        raise BadArtifactError(
            f"{spec.folder} has {found} labels, {demands.label_count} were asked for; give the "
            "number of the model's labels"
        )
    limit = _limit(spec, demands)
    if limit and not options.max_tokens:
        options = replace(options, max_tokens=limit)
    if demands.layers and not spec.layers and _may_end_early(spec):
        count = spec.config.get("num_hidden_layers")
        last = count if isinstance(count, int) else 0
        spec = replace(spec, layers=tuple(n for n in demands.layers if 0 < n < last))
    return spec, options


def _limit(spec: ModelSpec, demands: Demands) -> int:
    """Return the longest text or window, 0 for the model's own."""
    declared = spec.default_max_tokens or spec.position_limit
    if demands.token_limit:
        return min(demands.token_limit, spec.position_limit or declared)
    return demands.most_tokens if declared > demands.most_tokens > 0 else 0


def _may_end_early(spec: ModelSpec) -> bool:
    """Tell whether the graph of a folder can answer after fewer layers, if asked to."""
    from .graphs import FAMILIES

    built = spec.source == "safetensors" and spec.adapter is None
    return built and spec.task is Task.EMBEDDING and FAMILIES[spec.family].exits
