"""Rotary positions: both dialects of config.json, yarn, and the turned values themselves."""

import json
import math
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from libsemantic.engine.errors import BadArtifactError, SemanticError, UnsupportedError
from libsemantic.engine.graphs.builder import Branches, GraphBuilder
from libsemantic.engine.graphs.config_values import Size
from libsemantic.engine.graphs.finished import Head
from libsemantic.engine.graphs.rotary import Rotary, Theta, read_rotary, rotary_tables, rotate
from libsemantic.engine.weights import read_weights

DEPTH = Size("head_dim", 16)
GLOBAL = Theta("global_rope_theta", 160_000.0)
LOCAL = Theta("local_rope_theta", 10_000.0)
FULL, SLIDING = "full_attention", "sliding_attention"
YARN: dict[str, object] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
Config = dict[str, object]


def default(theta: float) -> list[float]:
    return [theta ** (-2 * pair / 16) for pair in range(8)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (160_000.0, 10_000.0)),
        ({"global_rope_theta": 50_000.0, "local_rope_theta": 300}, (50_000.0, 300.0)),
        ({"rope_parameters": None, "rope_scaling": None, "local_rope_theta": 300.0}, (16e4, 300.0)),
        (
            {
                "rope_parameters": {
                    FULL: {"rope_theta": 50_000, "rope_type": "default"},
                    SLIDING: {"rope_theta": 300.0, "rope_type": "default"},
                }
            },
            (50_000.0, 300.0),
        ),
        ({"rope_parameters": {FULL: {"rope_theta": 7e4}, SLIDING: None}}, (7e4, 1e4)),
        (
            {"global_rope_theta": 7e4, "rope_parameters": {FULL: {"rope_theta": 70_000}}},
            (7e4, 1e4),
        ),
    ],
)
def test_both_dialects_name_the_same_thetas(config: Config, expected: tuple[float, float]) -> None:
    for kind, theta, value in zip((FULL, SLIDING), (GLOBAL, LOCAL), expected, strict=True):
        rotary = read_rotary(config, DEPTH, theta, kind)
        assert rotary.factor == 1.0
        np.testing.assert_allclose(rotary.frequencies, default(value), rtol=3e-7)


def test_one_table_for_all_layers() -> None:
    theta = Theta("rope_theta", 10_000.0)
    for config in (
        {"rope_theta": 1_000_000, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    ):
        assert read_rotary(config, DEPTH, theta).frequencies == pytest.approx(default(1e6))


def test_frequencies_are_float32_as_in_the_reference() -> None:
    for frequency in read_rotary({}, DEPTH, GLOBAL, FULL).frequencies:
        assert frequency == float(np.float32(frequency))


def yarn_by_the_paper(theta: float) -> list[float]:
    """Kept above 32 turns over 128 tokens, a quarter below 1, a ramp over the pairs between."""
    at = [16 * math.log(128 / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1)]
    low, high = max(math.floor(at[0]), 0), min(math.ceil(at[1]), 15)
    shares = [min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(8)]
    return [f * (1 - s) + f / 4 * s for f, s in zip(default(theta), shares, strict=True)]


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": YARN},
        {"rope_scaling": {**YARN, "type": "yarn", "beta_fast": 32, "beta_slow": None}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 128}},
        {"rope_scaling": YARN, "original_max_position_embeddings": 128},
        {"rope_parameters": {FULL: {**YARN, "rope_theta": 160_000.0}, SLIDING: YARN}},
    ],
)
def test_yarn_in_all_its_spellings(config: Config) -> None:
    config = {"max_position_embeddings": 512, **config}
    for kind, theta, base in ((FULL, GLOBAL, 160_000.0), (SLIDING, LOCAL, 10_000.0)):
        rotary = read_rotary(config, DEPTH, theta, kind)
        np.testing.assert_allclose(rotary.frequencies, yarn_by_the_paper(base), rtol=1e-6)
        assert rotary.factor == pytest.approx(0.1 * math.log(4) + 1)
    kept, stretched = rotary.frequencies[0], rotary.frequencies[-1]
    assert (kept, stretched) == pytest.approx((1.0, default(1e4)[-1] / 4))


def test_the_original_length_beside_a_table_for_all_layers() -> None:
    """transformers lets it win over one in the table; what differs is refused here."""
    theta, beside = Theta("rope_theta", 1e4), {"original_max_position_embeddings": 128}
    for table in (YARN, {"type": "yarn", "factor": 4.0}, {"type": "yarn"}):
        config: Config = {"max_position_embeddings": 512, "rope_scaling": table, **beside}
        frequencies = read_rotary(config, DEPTH, theta).frequencies
        np.testing.assert_allclose(frequencies, yarn_by_the_paper(1e4), rtol=1e-6)
    config = {"max_position_embeddings": 512, "rope_parameters": {**YARN, "factor": 2.0}, **beside}
    config["original_max_position_embeddings"] = 256
    with pytest.raises(BadArtifactError, match="is 256, rope_parameters states 128; correct one"):
        read_rotary(config, DEPTH, theta)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"attention_factor": 1}, 1.0),
        (
            {"mscale": 0.7, "mscale_all_dim": 1.0},
            (0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1),
        ),
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
    ],
)
def test_the_factor_of_cosine_and_sine(more: Config, expected: float) -> None:
    config = {"max_position_embeddings": 512, "rope_scaling": {**YARN, **more}}
    assert read_rotary(config, DEPTH, GLOBAL, FULL).factor == pytest.approx(expected)


def test_scaling_may_be_for_other_layers_only() -> None:
    config = {"max_position_embeddings": 512, "rope_scaling": YARN}
    rotary = read_rotary(config, DEPTH, LOCAL, SLIDING, scaled=False)
    assert rotary == read_rotary({}, DEPTH, LOCAL, SLIDING)
    assert rotary != read_rotary(config, DEPTH, LOCAL, SLIDING)


BAD: list[tuple[Config, type[SemanticError], str]] = [
    (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        UnsupportedError,
        "rope_scaling states rope_type 'linear', .* supported are default, yarn",
    ),
    (
        {"rope_parameters": {FULL: {"rope_type": "llama3"}}},
        UnsupportedError,
        "rope_parameters.full_attention states rope_type 'llama3'",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "type": "linear"}},
        BadArtifactError,
        "rope_scaling states rope_type 'yarn' and type 'linear'",
    ),
    (
        {"rope_scaling": YARN, "rope_parameters": {FULL: {**YARN, "factor": 2.0}}},
        BadArtifactError,
        "'rope_scaling' states factor 4.0, rope_parameters.full_attention states 2.0",
    ),
    (
        {"global_rope_theta": 5.0, "rope_parameters": {FULL: {"rope_theta": 6.0}}},
        BadArtifactError,
        "states 'global_rope_theta' 5.0, rope_parameters.full_attention.rope_theta 6.0",
    ),
    ({"global_rope_theta": "5"}, BadArtifactError, "'global_rope_theta' is of type str"),
    ({"global_rope_theta": 1.0}, BadArtifactError, "global_rope_theta is 1.0, not above 1"),
    ({"global_rope_theta": float("nan")}, BadArtifactError, "is nan, not above 1"),
    ({"global_rope_theta": 10**400}, BadArtifactError, "is inf, not above 1"),
    ({"rope_parameters": {"rope_theta": 5.0}}, BadArtifactError, "'rope_theta' for all layers"),
    ({"rope_parameters": []}, BadArtifactError, "'rope_parameters' is of type list"),
    ({"rope_scaling": 4.0}, BadArtifactError, "'rope_scaling' is of type float"),
    ({"rope_scaling": {**YARN, "factor": 0.5}}, BadArtifactError, "factor 0.5, .* from 1"),
    ({"rope_scaling": {**YARN, "beta_slow": 64}}, BadArtifactError, "beta_slow 64.0"),
    ({"rope_scaling": {**YARN, "truncate": False}}, UnsupportedError, "truncate false"),
    (
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
        BadArtifactError,
        "original_max_position_embeddings 0",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn"}, "original_max_position_embeddings": 128},
        BadArtifactError,
        "is 128, rope_scaling does not state it, which stands for 512; correct one",
    ),
    (
        {"rope_scaling": YARN, "original_max_position_embeddings": 64},
        BadArtifactError,
        "'original_max_position_embeddings' is 64, rope_scaling states 128; correct one",
    ),
    ({"rope_scaling": {**YARN, "attention_factor": 0}}, BadArtifactError, "attention_factor 0.0"),
    ({"partial_rotary_factor": 0.5}, UnsupportedError, "'partial_rotary_factor' is not 1"),
]


@pytest.mark.parametrize(("config", "kind", "expected"), BAD)
def test_what_cannot_be_right_is_refused(
    config: Config, kind: type[SemanticError], expected: str
) -> None:
    config = {"max_position_embeddings": 512, **config}
    with pytest.raises(kind, match=expected) as caught:
        read_rotary(config, DEPTH, GLOBAL, FULL)
    assert type(caught.value) is kind


def test_a_family_with_one_table_refuses_several() -> None:
    config: Config = {"rope_parameters": {FULL: {"rope_theta": 5.0}}}
    with pytest.raises(BadArtifactError, match="has a table 'full_attention'"):
        read_rotary(config, DEPTH, Theta("rope_theta", 1e4))


def test_heads_of_odd_depth_are_refused() -> None:
    with pytest.raises(BadArtifactError, match="head_dim 15 is odd"):
        read_rotary({}, Size("head_dim", 15), GLOBAL, FULL)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("whole", [512, None], ids=["computed", "looked up"])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_halves_turn_together(
    tmp_path: Path, fused: bool, whole: int | None, factor: float
) -> None:
    heads, depth, tokens, batch = 3, 16, 9, 2
    values = np.random.default_rng(1).standard_normal((20, heads * depth)).astype(np.float32)
    write_table(tmp_path / "model.safetensors", values)
    branches = Branches(whole)
    builder = GraphBuilder(read_weights(tmp_path), ("input_ids",), fused=fused, branches=branches)
    width = Size("width", heads * depth)
    x = builder.fold(builder.embedding("input_ids", "x", Size("rows", 20), width), width)
    tables = rotary_tables(builder, Rotary(tuple(default(100.0)), factor), 12)
    turned = builder.unfold(rotate(builder, x, tables, heads, depth), width.value)
    head = Head(turned, "y", ("batch", "tokens", width.value), width.value, 20, 20, 0)
    graph = builder.finish(head, ())
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    session = onnxruntime.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(2).integers(0, 20, (batch, tokens))
    (found,) = session.run(["y"], {"input_ids": ids})
    halves = values[ids].reshape(batch, tokens, heads, 2, depth // 2).astype(np.float64)
    angles: NDArray[np.float64] = np.outer(np.arange(tokens), default(100.0))[:, None, :]
    complex_halves = (halves[..., 0, :] + 1j * halves[..., 1, :]) * np.exp(1j * angles) * factor
    expected = np.concatenate([complex_halves.real, complex_halves.imag], axis=-1)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=0, atol=2e-6)


def write_table(path: Path, values: NDArray[np.float32]) -> None:
    data = values.tobytes()
    entry = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"x": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
