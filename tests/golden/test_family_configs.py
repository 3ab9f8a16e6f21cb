"""Folders of the encoder families that cannot be right: refused by name, never guessed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from libsemantic.engine.config import Task
from libsemantic.engine.errors import BadArtifactError, SemanticError, UnsupportedError
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights

from .graph_runs import GOLDENS, MODELS, built, config_of

BAD, UNSUPPORTED = BadArtifactError, UnsupportedError
ROBERTA, DISTILBERT, ELECTRA, DEBERTA = (
    "roberta-seq",
    "distilbert-seq",
    "electra-seq",
    "deberta-v3-seq",
)
MODERNBERT, MODERNBERT5 = "modernbert-seq-mean", "modernbert-token"  # keys of transformers 4, 5
QWEN3, GEMMA3 = "qwen3-embed-last", "gemma3-embed-mean"
QUERY = "deberta.encoder.layer.0.attention.self.pos_query_proj.weight"

CONFIGS: list[tuple[str, str, object, type[SemanticError], str]] = [
    (ROBERTA, "pad_token_id", -1, BAD, "'pad_token_id' is -1, which leaves 130 of 130 positions"),
    (ROBERTA, "pad_token_id", 129, BAD, r"leaves 0 of 130 positions \('max_position_embeddings'"),
    (ROBERTA, "pad_token_id", "1", BAD, "'pad_token_id' is of type str"),
    (ROBERTA, "max_position_embeddings", 10**30, BAD, r"\[130, 64\], expected \[max_position"),
    (ROBERTA, "position_embedding_type", "relative_key", UNSUPPORTED, "'relative_key' is not"),
    (ROBERTA, "is_decoder", True, UNSUPPORTED, "is_decoder is true"),
    (ROBERTA, "type_vocab_size", 2, BAD, r"\[1, 64\], expected \[type_vocab_size 2, hidden"),
    (ROBERTA, "layer_norm_eps", 2.0, BAD, "'layer_norm_eps' is 2.0, not between"),
    (ROBERTA, "hidden_act", "mish", UNSUPPORTED, "'hidden_act' is 'mish', an act"),
    (ROBERTA, "num_labels", 3, BAD, "'num_labels' states 3 labels, weight 'classifier.out_proj.w"),
    (DISTILBERT, "activation", "gelu_10", UNSUPPORTED, "'activation' is 'gelu_10', an activation"),
    (DISTILBERT, "n_layers", 2, BAD, "'n_layers' is 2, the weights hold 3 layers"),
    (DISTILBERT, "dim", 32, BAD, r"\[664, 64\], expected \[vocab_size 664, dim 32\]"),
    (DISTILBERT, "hidden_dim", 64, BAD, r"\[128, 64\], expected \[hidden_dim 64, dim 64\]"),
    (DISTILBERT, "n_heads", 5, BAD, "dim 64 is no multiple of n_heads 5"),
    (DISTILBERT, "activation", None, BAD, "config.json lacks 'activation'"),
    (ELECTRA, "embedding_size", 64, BAD, r"\[664, 32\], expected \[vocab_size 664, embedding_si"),
    (ELECTRA, "embedding_size", None, BAD, "config.json lacks 'embedding_size'"),
    (ELECTRA, "hidden_size", 32, BAD, r"\[64, 64\], expected \[hidden_size 32, hidden_size 32\]"),
    (DEBERTA, "position_buckets", 16, BAD, r"\[64, 64\], expected \[2 \* distances 32, hidden"),
    (DEBERTA, "position_buckets", 3, BAD, "'position_buckets' is 3, which does not fit"),
    (DEBERTA, "position_buckets", 254, BAD, "'position_buckets' is 254, which does not fit dis"),
    (DEBERTA, "position_buckets", -1, BAD, r"\[64, 64\], expected \[2 \* distances 256"),
    (DEBERTA, "max_position_embeddings", 10**9, UNSUPPORTED, "is beyond 32768"),
    (DEBERTA, "max_relative_positions", 10**400, UNSUPPORTED, "is beyond 32768"),
    (DEBERTA, "pos_att_type", ["p2p"], UNSUPPORTED, r"pos_att_type \['p2p'\] is not supported; s"),
    (DEBERTA, "pos_att_type", "c2p|c2p", UNSUPPORTED, "supported are c2p, p2c, each at most once"),
    (DEBERTA, "pos_att_type", [1], UNSUPPORTED, r"pos_att_type \[1\] is not supported"),
    (DEBERTA, "pos_att_type", 3, BAD, "'pos_att_type' is of type int, not list"),
    (DEBERTA, "pos_att_type", None, BAD, "'deberta.encoder.rel_embeddings.weight' are no part"),
    (DEBERTA, "relative_attention", False, BAD, "weights 'deberta.encoder.LayerNorm.bias', 'deb"),
    (DEBERTA, "norm_rel_ebd", "rms", UNSUPPORTED, r"norm_rel_ebd \['rms'\] is not supported"),
    (DEBERTA, "norm_rel_ebd", "none", BAD, "weights 'deberta.encoder.LayerNorm.bias'.* no part"),
    (DEBERTA, "share_att_key", False, BAD, f"weight '{QUERY}' .* is missing"),
    (DEBERTA, "position_biased_input", True, BAD, "embeddings.position_embeddings.weight' .* is m"),
    (DEBERTA, "type_vocab_size", 2, BAD, "embeddings.token_type_embeddings.weight' .* is missing"),
    (DEBERTA, "type_vocab_size", -1, BAD, "'type_vocab_size' is -1, not positive"),
    (DEBERTA, "embedding_size", 32, BAD, r"\[335, 64\], expected \[vocab_size 335, embedding_s"),
    (DEBERTA, "conv_kernel_size", 3, BAD, r"conv.conv.weight' \[hidden_size 64, hidden_size / c"),
    (DEBERTA, "conv_kernel_size", 2, BAD, "'conv_kernel_size' is 2 and 'conv_groups' 1; they must"),
    (DEBERTA, "pooler_hidden_act", "mish", UNSUPPORTED, "'pooler_hidden_act' is 'mish', an act"),
    (QWEN3, "hidden_act", "mish", UNSUPPORTED, "'hidden_act' is 'mish', an act"),
    (
        QWEN3,
        "head_dim",
        16,
        BAD,
        r"'layers.0.self_attn.q_proj.weight' .* \[128, 64\], expected \[num",
    ),
    (QWEN3, "head_dim", None, BAD, r"expected \[num_attention_heads \* head_dim 512, hidden"),
    (QWEN3, "head_dim", 0, BAD, "'head_dim' is 0, not positive"),
    (QWEN3, "num_attention_heads", 5, BAD, "num_attention_heads 5 is no multiple of num_key_va"),
    (QWEN3, "num_key_value_heads", 1, BAD, r"expected \[num_key_value_heads \* head_dim 32, hid"),
    (QWEN3, "num_key_value_heads", None, BAD, "config.json lacks 'num_key_value_heads'"),
    (QWEN3, "num_hidden_layers", 2, BAD, "'num_hidden_layers' is 2, the weights hold 3 layers"),
    (QWEN3, "num_hidden_layers", 10**12, BAD, "the weights hold 3 layers"),
    (QWEN3, "rms_norm_eps", 0, BAD, "'rms_norm_eps' is 0.0, not between 0 and 1"),
    (QWEN3, "rms_norm_eps", "1e-6", BAD, "'rms_norm_eps' is of type str"),
    (QWEN3, "attention_bias", True, BAD, "weight 'layers.0.self_attn.q_proj.bias' .* is missing"),
    (QWEN3, "intermediate_size", 64, BAD, r"\[128, 64\], expected \[intermediate_size 64, hidden"),
    (QWEN3, "vocab_size", 901, BAD, r"\[900, 64\], expected \[vocab_size 901, hidden_size 64"),
    (QWEN3, "rope_theta", 0.5, BAD, "rope_theta is 0.5, not above 1"),
    (
        QWEN3,
        "rope_parameters",
        {"rope_theta": 10.0},
        BAD,
        "'rope_theta' 1000000.0, rope_parameters",
    ),
    (
        QWEN3,
        "rope_scaling",
        {"rope_type": "llama3"},
        UNSUPPORTED,
        "rope_type 'llama3', which is not",
    ),
    (
        QWEN3,
        "layer_types",
        ["full_attention"],
        BAD,
        "'layer_types' lists 1 layers, num_hidden_layers",
    ),
    (
        QWEN3,
        "layer_types",
        ["linear_attention"] * 3,
        UNSUPPORTED,
        "'layer_types' lists 'linear_att",
    ),
    (
        QWEN3,
        "layer_types",
        ["sliding_attention"] * 3,
        BAD,
        "lists sliding_attention, use_sliding_win",
    ),
    (MODERNBERT, "hidden_size", 32, BAD, r"\[900, 64\], expected \[vocab_size 900, hidden_size 32"),
    (MODERNBERT, "intermediate_size", 64, BAD, r"\[256, 64\], expected \[2 \* intermediate_size"),
    (MODERNBERT, "num_attention_heads", 5, BAD, "hidden_size 64 is no multiple of num_attention_h"),
    (MODERNBERT, "num_attention_heads", 64, BAD, "hidden_size / num_attention_heads 1 is odd"),
    (MODERNBERT, "num_hidden_layers", 3, BAD, "'num_hidden_layers' is 3, the weights hold 4 lay"),
    (MODERNBERT, "hidden_activation", "mish", UNSUPPORTED, "'hidden_activation' is 'mish', an act"),
    (
        MODERNBERT,
        "classifier_activation",
        "mish",
        UNSUPPORTED,
        "'classifier_activation' is 'mish', an act",
    ),
    (MODERNBERT, "classifier_pooling", "max", UNSUPPORTED, "'max'; known are cls, mean"),
    (MODERNBERT, "classifier_pooling", 1, BAD, "'classifier_pooling' is of type int"),
    (MODERNBERT, "classifier_bias", True, BAD, "weight 'head.dense.bias' .* is missing"),
    (MODERNBERT, "attention_bias", True, BAD, "weight 'model.layers.0.attn.Wqkv.bias' .* is miss"),
    (MODERNBERT, "mlp_bias", True, BAD, "weight 'model.layers.0.mlp.Wi.bias' .* is missing"),
    (MODERNBERT, "norm_bias", True, BAD, "weight 'model.embeddings.norm.bias' .* is missing"),
    (MODERNBERT, "norm_bias", 0, BAD, "'norm_bias' is of type int"),
    (MODERNBERT, "norm_eps", 0, BAD, "'norm_eps' is 0.0, not between 0 and 1"),
    (MODERNBERT, "layer_norm_eps", 1e-12, BAD, "'norm_eps' is 1e-05, 'layer_norm_eps' is 1e-12"),
    (
        MODERNBERT,
        "sliding_window",
        9,
        BAD,
        "'sliding_window' is 9, not half of 'local_attention' 16",
    ),
    (MODERNBERT, "local_attention", 0, BAD, "'local_attention' is 0, not positive"),
    (MODERNBERT, "global_attn_every_n_layers", -1, BAD, "'global_attn_every_n_layers' is -1, not"),
    (MODERNBERT, "global_attn_every_n_layers", 0, BAD, "'global_attn_every_n_layers' is 0, not"),
    (MODERNBERT, "layer_types", ["full_attention"] * 4, BAD, "'global_attn_every_n_layers' 3 dis"),
    (MODERNBERT5, "layer_types", ["full_attention"], BAD, "'layer_types' lists 1 layers, 'num_hid"),
    (MODERNBERT5, "layer_types", ["linear"] * 4, UNSUPPORTED, "lists 'linear'; known are full_att"),
    (MODERNBERT5, "global_attn_every_n_layers", 2, BAD, "'global_attn_every_n_layers' 2 disagree"),
    (MODERNBERT5, "global_rope_theta", 1.5, BAD, "'global_rope_theta' 1.5, rope_parameters.full"),
    (MODERNBERT, "global_rope_theta", -1.0, BAD, "global_rope_theta is -1.0, not above 1"),
    (MODERNBERT, "rope_scaling", {"type": "dynamic"}, UNSUPPORTED, "rope_type 'dynamic', which i"),
    (MODERNBERT, "num_labels", 3, BAD, "'num_labels' states 3 labels, weight 'classifier.weight'"),
    (GEMMA3, "query_pre_attn_scalar", 0, BAD, "'query_pre_attn_scalar' is 0.0, not a positive"),
    (GEMMA3, "query_pre_attn_scalar", 1e400, BAD, "'query_pre_attn_scalar' is inf, not a positive"),
    (GEMMA3, "attn_logit_softcapping", 50.0, UNSUPPORTED, "capped scores are not supported"),
    (GEMMA3, "hidden_activation", "mish", UNSUPPORTED, "'hidden_activation' is 'mish', an act"),
    (GEMMA3, "is_causal", False, UNSUPPORTED, "'is_causal' is false, which is not supported; the"),
    (GEMMA3, "sliding_window", None, BAD, "config.json lacks 'sliding_window'"),
    (GEMMA3, "sliding_window", -1, BAD, "'sliding_window' is -1, not positive"),
]


@pytest.mark.parametrize(("name", "key", "value", "kind", "expected"), CONFIGS)
def test_configs_that_cannot_be_right_are_refused(
    name: str, key: str, value: object, kind: type[SemanticError], expected: str
) -> None:
    weights = read_weights(MODELS / name)
    with pytest.raises(kind, match=expected) as caught:
        build_graph(config_of(name) | {key: value}, GOLDENS[name].task, weights)
    assert type(caught.value) is kind


# What transformers means where the file does not say.
DEFAULTS: list[tuple[str, Mapping[str, object]]] = [
    (ROBERTA, {"pad_token_id": None, "is_decoder": None, "id2label": None}),
    (DISTILBERT, {"sinusoidal_pos_embds": True, "layer_norm_eps": 0.5}),
    (ELECTRA, {"layer_norm_eps": None, "summary_activation": "tanh", "summary_use_proj": False}),
    (DEBERTA, {"pos_att_type": "p2c | C2P", "max_relative_positions": 128}),
    (DEBERTA, {"pooler_hidden_act": None, "embedding_size": 64, "conv_kernel_size": 0}),
    (DEBERTA, {"type_vocab_size": None, "norm_rel_ebd": "layer_norm|none"}),
    (DEBERTA, {"layer_norm_eps": None, "hidden_act": "gelu_python"}),
    (QWEN3, {"hidden_act": "swish"}),
    (QWEN3, {"rms_norm_eps": None, "layer_types": None, "sliding_window": 4, "lm_head": None}),
    (QWEN3, {"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
    (
        MODERNBERT,
        {
            "global_rope_theta": None,
            "rope_parameters": {
                "full_attention": {"rope_theta": 160000, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4},
            },
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        },
    ),
    (MODERNBERT, {"layer_norm_eps": 1e-5, "norm_bias": None, "rope_scaling": None}),
    (MODERNBERT, {"norm_eps": None, "hidden_activation": None, "local_attention": 17}),
    (MODERNBERT, {"sliding_window": 8}),
    (MODERNBERT, {"local_attention": None, "sliding_window": 8}),
    (MODERNBERT5, {"rope_parameters": None, "layer_types": None, "classifier_pooling": "mean"}),
    (GEMMA3, {"layer_types": None, "sliding_window_pattern": 6, "sliding_window": 17}),
    (GEMMA3, {"rope_theta": None, "rope_local_base_freq": None}),
    (
        GEMMA3,
        {
            "rope_theta": None,
            "rope_local_base_freq": None,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4},
            },
        },
    ),
]


@pytest.mark.parametrize(("name", "changes"), DEFAULTS)
def test_keys_that_say_nothing_new_change_nothing(name: str, changes: Mapping[str, object]) -> None:
    config = config_of(name) | dict(changes)
    graph = build_graph(config, GOLDENS[name].task, read_weights(MODELS / name))
    assert graph == built(name)


def test_a_local_theta_of_null_is_the_global_one() -> None:
    """As transformers 4 reads it; transformers 5 refuses it."""
    weights = read_weights(MODELS / MODERNBERT)
    graphs = [
        build_graph(
            config_of(MODERNBERT) | {"local_rope_theta": theta}, GOLDENS[MODERNBERT].task, weights
        )
        for theta in (None, 160_000.0, 10_000.0)
    ]
    assert graphs[0] == graphs[1] != graphs[2]


@pytest.mark.parametrize("name", GOLDENS)
def test_weights_that_are_missing_or_unknown_are_named(name: str) -> None:
    weights, config, task = read_weights(MODELS / name), config_of(name), GOLDENS[name].task
    unused = [key for key in weights if "pooler" in key and task is Task.EMBEDDING]
    for missing in weights.keys() - unused:
        fewer = {key: tensor for key, tensor in weights.items() if key != missing}
        with pytest.raises(BadArtifactError, match=f"weight '{missing}' .*is missing"):
            build_graph(config, task, fewer)
    for unknown in ("lora_A.weight", "encoder.layer_9.x", "qa_outputs.weight"):
        more = weights | {unknown: next(iter(weights.values()))}
        with pytest.raises(BadArtifactError, match=f"weights '{unknown}' are no part of"):
            build_graph(config, task, more)


@pytest.mark.parametrize("name", [name for name in GOLDENS if name.endswith("-seq")])
@pytest.mark.parametrize("end", ["ForMaskedLM", "ForPreTraining", "ForQuestionAnswering"])
def test_heads_that_are_no_task_are_refused_by_name(
    registry: Registry,
    copy_golden: Callable[[str, Mapping[str, object]], Path],
    name: str,
    end: str,
) -> None:
    architecture = str(config_of(name)["architectures"]).strip("[]'")
    other = architecture.removesuffix("ForSequenceClassification") + end
    folder = copy_golden(name, {"config.json": {"architectures": [other]}})
    with pytest.raises(UnsupportedError, match=f"architecture '{other}' is not supported"):
        registry.load(str(folder))
    assert registry.list_models().count == 0
