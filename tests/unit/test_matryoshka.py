"""Lists of smaller dimensions and layers, where they may stand and what they may say."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from libsemantic.engine.descriptions import Description
from libsemantic.engine.errors import BadArtifactError, SemanticError, UnsupportedError
from libsemantic.engine.matryoshka import Smaller, read_smaller

CONFIG: dict[str, object] = {"hidden_size": 64, "num_hidden_layers": 22}
POOLING = ("pooling_mode_mean_tokens",)


def read(folder: Path, config: Mapping[str, object], manifest: object = None) -> Smaller:
    path = folder / "matryoshka_config.json"
    path.unlink(missing_ok=True)
    if manifest is not None:
        path.write_text(json.dumps(manifest))
    described = Description(folder / "config.json", MappingProxyType(CONFIG | dict(config)))
    return read_smaller(folder, described, 64, POOLING)


@pytest.mark.parametrize(
    ("config", "manifest", "dimensions", "layers"),
    [
        ({}, None, (), ()),
        ({}, {}, (), ()),
        ({"matryoshka_dims": [64, 16, 32, 16]}, None, (16, 32), ()),
        ({"matryoshka_dimensions": [8]}, None, (8,), ()),
        ({"matryoshka_layers": [22, 3, 6]}, None, (), (3, 6)),
        ({"matryoshka_layers": [22]}, {"layer_indices": None}, (), ()),
        ({}, {"layer_indices": [11, 3, 22], "dim_indices": [64, 32]}, (32,), (3, 11)),
        (
            {"matryoshka_dims": [32]},
            {"dim_indices": [64, 32], "hidden_size": 64, "num_layers": 22},
            (32,),
            (),
        ),
        (
            {"representation_contract": {"intermediate_normalization": "final_norm"}},
            {"layer_indices": [3], "has_final_norm": True, "pooling_strategy": "mean"},
            (),
            (3,),
        ),
        ({}, {"dim_indices": [32], "has_final_norm": False, "pooling_strategy": "cls"}, (32,), ()),
    ],
)
def test_what_is_listed_is_allowed(
    tmp_path: Path,
    config: Mapping[str, object],
    manifest: object,
    dimensions: tuple[int, ...],
    layers: tuple[int, ...],
) -> None:
    smaller = read(tmp_path, config, manifest)
    assert (smaller.dimensions, smaller.layers) == (dimensions, layers)
    assert (smaller.manifest is None) is (manifest is None)


LAYERS = {"layer_indices": [3, 22]}


@pytest.mark.parametrize(
    ("config", "manifest", "kind", "expected"),
    [
        (
            {"matryoshka_layers": [23]},
            None,
            BadArtifactError,
            "'matryoshka_layers' must list layers",
        ),
        ({"matryoshka_layers": [0]}, None, BadArtifactError, "must list layers from 1 to 22"),
        ({"matryoshka_layers": [True]}, None, BadArtifactError, "must list layers from 1 to 22"),
        ({"matryoshka_layers": 3}, None, BadArtifactError, "'matryoshka_layers' is not a list"),
        ({}, {"layer_indices": ["3"]}, BadArtifactError, "matryoshka_config.json: 'layer_indices'"),
        (
            {},
            {"dim_indices": [65]},
            BadArtifactError,
            "'dim_indices' must list dimensions from 1 to",
        ),
        ({}, [], BadArtifactError, "does not hold a JSON object"),
        ({}, {"hidden_size": 32}, BadArtifactError, "'hidden_size' is 32, config.json says 64"),
        ({}, {"num_layers": 12}, BadArtifactError, "'num_layers' is 12, config.json says 22"),
        (
            {"matryoshka_dims": [16]},
            {"dim_indices": [32]},
            BadArtifactError,
            "different dimensions",
        ),
        (
            {"matryoshka_layers": [6]},
            LAYERS,
            BadArtifactError,
            "list different layers; correct one",
        ),
        (
            {},
            LAYERS | {"pooling_strategy": "cls"},
            BadArtifactError,
            "'cls', the folder pools by p",
        ),
        (
            {},
            LAYERS | {"has_final_norm": False},
            UnsupportedError,
            "'has_final_norm' is False; lay",
        ),
        (
            {"representation_contract": {"intermediate_normalization": "none"}},
            LAYERS,
            UnsupportedError,
            "config.json: 'intermediate_normalization' is 'none'; layers are supported whose",
        ),
    ],
)
def test_lists_that_cannot_be_right_are_refused(
    tmp_path: Path,
    config: Mapping[str, object],
    manifest: object,
    kind: type[SemanticError],
    expected: str,
) -> None:
    with pytest.raises(kind, match=expected) as caught:
        read(tmp_path, config, manifest)
    assert type(caught.value) is kind
