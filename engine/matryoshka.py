"""Read which smaller answers an embedding model is trained for: fewer dimensions, fewer layers.

They stand in config.json (``matryoshka_dims``, ``matryoshka_layers``) or in
``matryoshka_config.json`` (``dim_indices``, ``layer_indices``), which trainers of 2D-Matryoshka
models write beside it. Nothing is allowed that no file lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .descriptions import Description, read_description
from .errors import BadArtifactError, UnsupportedError

MANIFEST = "matryoshka_config.json"
_DIMENSION_KEYS = ("matryoshka_dims", "matryoshka_dimensions")
_LAYER_KEYS = ("matryoshka_layers",)
_COUNT_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
_NORMS = ("intermediate_normalization", "final_normalization")
_FINAL_NORM = "final_norm"


@dataclass(frozen=True, slots=True)
class Smaller:
    """Dimensions and layers that a call may ask for, sorted, less than the model's own.

    ``manifest`` is the file that was read besides config.json.
    """

    dimensions: tuple[int, ...]
    layers: tuple[int, ...]
    manifest: Description | None


NOTHING_SMALLER = Smaller((), (), None)


def read_smaller(folder: Path, config: Description, width: int, pooling: Sequence[str]) -> Smaller:
    """Read the lists of a model whose vectors have ``width`` dimensions (0: unknown).

    ``pooling`` names flags of ``1_Pooling/config.json``. Raises BadArtifactError for lists that
    contradict each other or the model, UnsupportedError for layers that end otherwise than in
    the final normalisation.
    """
    manifest = read_description(folder / MANIFEST)
    count = next((n for key in _COUNT_KEYS if (n := config.positive(key)) is not None), 0)
    if manifest is not None:
        _check_sizes(manifest, {"hidden_size": config.positive("hidden_size"), "num_layers": count})
    dimensions = _listed(config, _DIMENSION_KEYS, manifest, "dim_indices", width)
    layers = _listed(config, _LAYER_KEYS, manifest, "layer_indices", count)
    if layers:
        _check_ends(config, manifest, pooling)
    return Smaller(dimensions, layers, manifest)


def _listed(
    config: Description, keys: Sequence[str], manifest: Description | None, name: str, most: int
) -> tuple[int, ...]:
    """Return what config.json or the manifest lists below ``most`` (0: unknown), sorted."""
    key = next((key for key in keys if key in config.values), keys[0])
    places = [(config, key)] if manifest is None else [(config, key), (manifest, name)]
    found: list[tuple[int, ...]] = []
    what = "layers" if keys is _LAYER_KEYS else "dimensions"
    for description, key in places:
        listed = description.get(key, list)
        if listed is None:
            continue
        sizes = [size for size in listed if type(size) is int and 0 < size <= (most or size)]
        if len(sizes) < len(listed):
            raise BadArtifactError(
                f"{description.path}: {key!r} must list {what} from 1 to {most or 'the native one'}"
            )
        found.append(tuple(sorted({size for size in sizes if size != most})))
    if len(set(found)) > 1:
        raise BadArtifactError(
            f"{config.path}: {key!r} and {name!r} of {MANIFEST} list different {what}; correct one"
        )
    return found[0] if found else ()


def _check_sizes(manifest: Description, own: dict[str, int | None]) -> None:
    for key, size in own.items():
        stated = manifest.positive(key)
        if stated is not None and size and stated != size:
            raise BadArtifactError(
                f"{manifest.path}: {key!r} is {stated}, config.json says {size}; the folder mixes "
                "two models"
            )


def _check_ends(config: Description, manifest: Description | None, pooling: Sequence[str]) -> None:
    """Require that an answer after some layers is made as one after all of them."""
    for description in (config, manifest):
        if description is None:
            continue
        contract = description.get("representation_contract", dict) or {}
        ends = {key: contract.get(key, _FINAL_NORM) for key in _NORMS}
        if description.get("has_final_norm", bool) is False:
            ends["has_final_norm"] = False
        for key, value in ends.items():
            if value != _FINAL_NORM:
                raise UnsupportedError(
                    f"{description.path}: {key!r} is {value!r:.60}; layers are supported whose "
                    "states go through the model's final normalisation"
                )
    strategy = None if manifest is None else manifest.get("pooling_strategy", str)
    if manifest is not None and strategy and not any(f"_{strategy}_" in flag for flag in pooling):
        raise BadArtifactError(
            f"{manifest.path}: 'pooling_strategy' is {strategy!r}, the folder pools by "
            f"{', '.join(pooling) or 'nothing'}; correct one"
        )
