"""Small models of the variants that no golden folder has, with weights made by a formula.

``make_variants.py`` gives them to transformers and keeps its answers in expected_variants.json;
the tests give them to the graphs. ``shapes`` knows the weights of each family at any size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Config: TypeAlias = dict[str, object]
Shapes: TypeAlias = dict[str, tuple[int, ...]]


def number(config: Mapping[str, object], key: str, default: int = 0) -> int:
    value = config.get(key, default)
    assert isinstance(value, int)
    return value


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _tables(prefix: str, width: int, **tables: int) -> Shapes:
    name = f"{prefix}embeddings"
    shapes = {f"{name}.{key}_embeddings.weight": (rows, width) for key, rows in tables.items()}
    return shapes | _norm(f"{name}.LayerNorm", width)


def _layers(prefix: str, config: Mapping[str, object], suffix: str = "") -> Shapes:
    """Return the layers of BERT; ``suffix`` follows the names of query, key and value."""
    hidden, inner = number(config, "hidden_size"), number(config, "intermediate_size")
    shapes: Shapes = {}
    for layer in range(number(config, "num_hidden_layers")):
        name = f"{prefix}encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{name}.attention.self.{part}{suffix}", hidden, hidden)
        shapes |= _linear(f"{name}.attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{name}.attention.output.LayerNorm", hidden)
        shapes |= _linear(f"{name}.intermediate.dense", hidden, inner)
        shapes |= _linear(f"{name}.output.dense", inner, hidden)
        shapes |= _norm(f"{name}.output.LayerNorm", hidden)
    return shapes


def _bert_embeddings(prefix: str, config: Mapping[str, object], width: int) -> Shapes:
    return _tables(
        prefix,
        width,
        word=number(config, "vocab_size"),
        position=number(config, "max_position_embeddings"),
        token_type=number(config, "type_vocab_size"),
    )


def _head(task: str, hidden: int, labels: int, dense: str, output: str) -> Shapes:
    if task == "Model":
        return {}
    if task == "ForTokenClassification":
        return _linear("classifier", hidden, labels)
    return _linear(dense, hidden, hidden) | _linear(output, hidden, labels)


def _prefix(task: str, name: str) -> str:
    return "" if task == "Model" else f"{name}."


def _bert(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "bert"), number(config, "hidden_size")
    shapes = _bert_embeddings(prefix, config, hidden) | _layers(prefix, config)
    return shapes | _head(task, hidden, labels, f"{prefix}pooler.dense", "classifier")


def _roberta(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "roberta"), number(config, "hidden_size")
    shapes = _bert_embeddings(prefix, config, hidden) | _layers(prefix, config)
    return shapes | _head(task, hidden, labels, "classifier.dense", "classifier.out_proj")


def _electra(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "electra"), number(config, "hidden_size")
    width = number(config, "embedding_size")
    shapes = _bert_embeddings(prefix, config, width) | _layers(prefix, config)
    if width != hidden:
        shapes |= _linear(f"{prefix}embeddings_project", width, hidden)
    return shapes | _head(task, hidden, labels, "classifier.dense", "classifier.out_proj")


def _distilbert(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "distilbert"), number(config, "dim")
    inner = number(config, "hidden_dim")
    rows = (number(config, key) for key in ("vocab_size", "max_position_embeddings"))
    shapes = _tables(prefix, hidden, **dict(zip(("word", "position"), rows, strict=True)))
    for layer in range(number(config, "n_layers")):
        name = f"{prefix}transformer.layer.{layer}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            shapes |= _linear(f"{name}.attention.{part}", hidden, hidden)
        shapes |= _norm(f"{name}.sa_layer_norm", hidden)
        shapes |= _linear(f"{name}.ffn.lin1", hidden, inner)
        shapes |= _linear(f"{name}.ffn.lin2", inner, hidden)
        shapes |= _norm(f"{name}.output_layer_norm", hidden)
    return shapes | _head(task, hidden, labels, "pre_classifier", "classifier")


def _deberta(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "deberta"), number(config, "hidden_size")
    width = number(config, "embedding_size", hidden)
    tables = {"word": number(config, "vocab_size")}
    if config.get("position_biased_input", True):
        tables["position"] = number(config, "max_position_embeddings")
    if number(config, "type_vocab_size"):
        tables["token_type"] = number(config, "type_vocab_size")
    shapes = _tables(prefix, width, **tables) | _norm(f"{prefix}embeddings.LayerNorm", hidden)
    if width != hidden:
        shapes[f"{prefix}embeddings.embed_proj.weight"] = (hidden, width)
    shapes |= _layers(prefix, config, "_proj")
    if config.get("relative_attention"):
        span = number(config, "position_buckets", -1)
        if span < 1:
            span = number(config, "max_relative_positions", -1)
        if span < 1:
            span = number(config, "max_position_embeddings")
        shapes[f"{prefix}encoder.rel_embeddings.weight"] = (2 * span, hidden)
        if not config.get("share_att_key"):
            for layer in range(number(config, "num_hidden_layers")):
                name = f"{prefix}encoder.layer.{layer}.attention.self"
                for kind, part in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
                    if kind in str(config["pos_att_type"]).lower():
                        shapes |= _linear(f"{name}.{part}", hidden, hidden)
    if config.get("norm_rel_ebd") == "layer_norm":
        shapes |= _norm(f"{prefix}encoder.LayerNorm", hidden)
    if kernel := number(config, "conv_kernel_size"):
        inputs = hidden // number(config, "conv_groups", 1)
        shapes[f"{prefix}encoder.conv.conv.weight"] = (hidden, inputs, kernel)
        shapes[f"{prefix}encoder.conv.conv.bias"] = (hidden,)
        shapes |= _norm(f"{prefix}encoder.conv.LayerNorm", hidden)
    return shapes | _head(task, hidden, labels, "pooler.dense", "classifier")


def _modernbert(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "model"), number(config, "hidden_size")
    inner = number(config, "intermediate_size")

    def part(name: str, outputs: int, inputs: int, bias: str) -> Shapes:
        both = _linear(name, inputs, outputs) if inputs else _norm(name, outputs)
        if not config.get(bias):
            both.popitem()
        return both

    norm = (hidden, 0, "norm_bias")
    shapes: Shapes = {
        f"{prefix}embeddings.tok_embeddings.weight": (number(config, "vocab_size"), hidden)
    }
    shapes |= part(f"{prefix}embeddings.norm", *norm) | part(f"{prefix}final_norm", *norm)
    for layer in range(number(config, "num_hidden_layers")):
        name = f"{prefix}layers.{layer}"
        if layer:
            shapes |= part(f"{name}.attn_norm", *norm)
        shapes |= part(f"{name}.attn.Wqkv", 3 * hidden, hidden, "attention_bias")
        shapes |= part(f"{name}.attn.Wo", hidden, hidden, "attention_bias")
        shapes |= part(f"{name}.mlp_norm", *norm)
        shapes |= part(f"{name}.mlp.Wi", 2 * inner, hidden, "mlp_bias")
        shapes |= part(f"{name}.mlp.Wo", hidden, inner, "mlp_bias")
    if task == "Model":
        return shapes
    shapes |= part("head.dense", hidden, hidden, "classifier_bias") | part("head.norm", *norm)
    return shapes | _linear("classifier", hidden, labels)


def _decoder(config: Mapping[str, object], task: str, labels: int) -> Shapes:
    prefix, hidden = _prefix(task, "model"), number(config, "hidden_size")
    depth, inner = number(config, "head_dim"), number(config, "intermediate_size")
    queries, keys = (
        depth * number(config, key) for key in ("num_attention_heads", "num_key_value_heads")
    )
    norms = ["input", "post_attention"]
    if config["model_type"] == "gemma3_text":
        norms += ["pre_feedforward", "post_feedforward"]
    shapes: Shapes = {f"{prefix}embed_tokens.weight": (number(config, "vocab_size"), hidden)}
    for layer in range(number(config, "num_hidden_layers")):
        name = f"{prefix}layers.{layer}"
        shapes |= {f"{name}.{norm}_layernorm.weight": (hidden,) for norm in norms}
        for part, inputs, outputs in (
            ("q", hidden, queries),
            ("k", hidden, keys),
            ("v", hidden, keys),
            ("o", queries, hidden),
        ):
            linear = _linear(f"{name}.self_attn.{part}_proj", inputs, outputs)
            if not config.get("attention_bias"):
                linear.popitem()
            shapes |= linear
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (depth,) for part in ("q", "k")}
        for part in ("gate", "up"):
            shapes[f"{name}.mlp.{part}_proj.weight"] = (inner, hidden)
        shapes[f"{name}.mlp.down_proj.weight"] = (hidden, inner)
    shapes[f"{prefix}norm.weight"] = (hidden,)
    if task == "ForSequenceClassification":
        shapes["score.weight"] = (labels, hidden)
    elif task == "ForTokenClassification":
        shapes |= _linear("score", hidden, labels)
    return shapes


_SHAPES: Final[Mapping[str, Callable[[Mapping[str, object], str, int], Shapes]]] = {
    "bert": _bert,
    "deberta-v2": _deberta,
    "distilbert": _distilbert,
    "electra": _electra,
    "gemma3_text": _decoder,
    "modernbert": _modernbert,
    "qwen3": _decoder,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
}


def shapes(config: Mapping[str, object], task: str, labels: int = 0) -> Shapes:
    """Return names and shapes of all weights; ``task`` is the end of the architecture's name."""
    return _SHAPES[str(config["model_type"])](config, task, labels)


def drawn(name: str, shape: tuple[int, ...], scale: float = 1.5) -> Array:
    """Return values that depend on the name and the place alone (splitmix64).

    Scales and biases are near 1 and 0, as in trained models.
    """
    seed = np.uint64(sum(byte * 257**place % 2**32 for place, byte in enumerate(name.encode())))
    bits = np.arange(1, prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values = ((bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1).reshape(shape)
    if len(shape) > 1:
        width = 1 if "embed" in name else prod(shape[1:])
        values *= np.float32(scale / width**0.5)
    else:
        values *= np.float32(0.2)
        values += np.float32("norm" in name.lower() and name.endswith("weight"))
    return values


@dataclass(frozen=True, slots=True)
class Variant:
    """A model: its configuration, which is all that transformers is told, and its inputs."""

    architecture: str
    config: Config
    labels: int = 0

    @property
    def task(self) -> str:
        """Return the end of the architecture's name."""
        ends = ("ForSequenceClassification", "ForTokenClassification", "Model")
        return next(end for end in ends if self.architecture.endswith(end))

    def full_config(self) -> Config:
        names = {str(index): f"label {index}" for index in range(self.labels)}
        return (
            self.config
            | {"architectures": [self.architecture]}
            | ({"id2label": names} if names else {})
        )

    def arrays(self) -> dict[str, Array]:
        return {
            name: drawn(name, shape)
            for name, shape in shapes(self.config, self.task, self.labels).items()
        }


TOKENS: Final = 24
PADDING: Final = 5  # the id, where the configuration does not say another


def inputs(variant: Variant) -> dict[str, NDArray[np.int64]]:
    """Return ids, mask and types ``[3, TOKENS]``: whole, padded right, padded left (both 7)."""
    padding = number(variant.config, "pad_token_id", PADDING)
    ids = np.arange(3 * TOKENS, dtype=np.int64).reshape(3, TOKENS) * 7 % 40 + 10
    mask = np.ones_like(ids)
    mask[1, -7:] = 0
    mask[2, :7] = 0
    ids[mask == 0] = padding
    ids[0, 11] = padding  # also inside a text
    types = (np.arange(TOKENS) >= 9).astype(np.int64) * mask
    if number(variant.config, "type_vocab_size") == 1:
        types[:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


_SMALL: Final[Config] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
    "pad_token_id": PADDING,
}
_ROBERTA: Final = _SMALL | {"model_type": "roberta"}
_ELECTRA: Final = _SMALL | {"model_type": "electra", "embedding_size": 32}
_DISTILBERT: Final[Config] = {
    "model_type": "distilbert",
    "vocab_size": 50,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "activation": "relu",
    "max_position_embeddings": 40,
    "pad_token_id": PADDING,
    "sinusoidal_pos_embds": True,
}
_DEBERTA: Final = _SMALL | {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 8,
    "position_biased_input": False,
}

_QWEN3: Final[Config] = {
    "model_type": "qwen3",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 40,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "pad_token_id": PADDING,
}
_GEMMA3: Final[Config] = {
    **_QWEN3,
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_local_base_freq": 100.0,
    "query_pre_attn_scalar": 5,
    "sliding_window": 6,
    "sliding_window_pattern": 3,
}

_MODERNBERT: Final[Config] = {
    "model_type": "modernbert",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_activation": "gelu",
    "max_position_embeddings": 40,
    "norm_eps": 1e-5,
    "local_attention": 8,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 500.0,
    "local_rope_theta": 100.0,
    "pad_token_id": PADDING,
}
_YARN: Final[Config] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 10,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

VARIANTS: Final = {
    "bert with tanh activation": Variant(
        "BertForTokenClassification", _SMALL | {"model_type": "bert", "hidden_act": "gelu_new"}, 3
    ),
    "roberta embedding with types": Variant("RobertaModel", _ROBERTA),
    "roberta pairs, one logit": Variant("RobertaForSequenceClassification", _ROBERTA, 1),
    "roberta of one type": Variant(
        "RobertaForTokenClassification", _ROBERTA | {"type_vocab_size": 1, "pad_token_id": 1}, 2
    ),
    "xlm-roberta tokens": Variant(
        "XLMRobertaForTokenClassification", _ROBERTA | {"model_type": "xlm-roberta"}, 3
    ),
    "xlm-roberta embedding": Variant("XLMRobertaModel", _ROBERTA | {"model_type": "xlm-roberta"}),
    "distilbert tokens": Variant("DistilBertForTokenClassification", _DISTILBERT, 3),
    "distilbert embedding": Variant("DistilBertModel", _DISTILBERT),
    "electra tokens": Variant("ElectraForTokenClassification", _ELECTRA, 3),
    "electra embedding": Variant("ElectraModel", _ELECTRA | {"embedding_size": 16}),
    "electra pairs": Variant("ElectraForSequenceClassification", _ELECTRA, 3),
    "deberta embedding": Variant("DebertaV2Model", _DEBERTA),
    "deberta of all of v2": Variant(
        "DebertaV2ForSequenceClassification",
        _DEBERTA
        | {
            "pos_att_type": "c2p|P2C",
            "share_att_key": False,
            "position_buckets": -1,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": True,
            "embedding_size": 16,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "pooler_hidden_act": "tanh",
        },
        3,
    ),
    "deberta with grouped convolution": Variant(
        "DebertaV2ForTokenClassification",
        _DEBERTA | {"conv_kernel_size": 5, "conv_groups": 4, "type_vocab_size": 0},
        2,
    ),
    "deberta beyond its distances": Variant(
        "DebertaV2ForTokenClassification",
        _DEBERTA | {"position_buckets": -1, "max_relative_positions": 6, "pos_att_type": ["c2p"]},
        2,
    ),
    "deberta beyond its buckets": Variant(
        "DebertaV2ForTokenClassification",
        _DEBERTA | {"max_relative_positions": 9, "pos_att_type": ["p2c"], "share_att_key": False},
        2,
    ),
    "deberta without distances": Variant(
        "DebertaV2ForTokenClassification",
        _DEBERTA | {"relative_attention": False, "position_biased_input": True},
        2,
    ),
    "qwen3 sequences": Variant("Qwen3ForSequenceClassification", _QWEN3, 3),
    "qwen3 sequence that ends in padding": Variant(
        "Qwen3ForSequenceClassification", _QWEN3 | {"pad_token_id": 11}, 1
    ),
    "qwen3 tokens": Variant("Qwen3ForTokenClassification", _QWEN3, 3),
    "qwen3 with biases and windows": Variant(
        "Qwen3Model",
        _QWEN3
        | {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "qwen3 of listed layers, one key for each query": Variant(
        "Qwen3Model",
        _QWEN3
        | {
            "num_key_value_heads": 8,
            "use_sliding_window": True,
            "sliding_window": 1,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3 in both directions": Variant(
        "Qwen3Model",
        _QWEN3
        | {
            "is_causal": False,
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
        },
    ),
    "qwen3 with yarn": Variant(
        "Qwen3Model",
        _QWEN3
        | {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 10,
            }
        },
    ),
    "gemma3 in both directions": Variant(
        "Gemma3TextModel", _GEMMA3 | {"use_bidirectional_attention": True}
    ),
    "gemma3 of an odd window": Variant(
        "Gemma3TextModel",
        _GEMMA3 | {"use_bidirectional_attention": True, "sliding_window": 7},
    ),
    "gemma3 causal": Variant("Gemma3TextModel", _GEMMA3),
    "modernbert with every bias": Variant(
        "ModernBertForTokenClassification",
        _MODERNBERT
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "classifier_bias": True,
            "local_attention": 7,
        },
        3,
    ),
    "modernbert with other activations": Variant(
        "ModernBertForSequenceClassification",
        _MODERNBERT
        | {
            "hidden_activation": "silu",
            "classifier_activation": "relu",
            "norm_eps": 0.01,
            "classifier_pooling": "cls",
        },
        3,
    ),
    "modernbert of listed layers, one logit": Variant(
        "ModernBertForSequenceClassification",
        {
            key: value
            for key, value in _MODERNBERT.items()
            if "theta" not in key and key != "global_attn_every_n_layers"
        }
        | {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_hidden_layers": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
            "classifier_pooling": "mean",
            "norm_bias": True,
        },
        1,
    ),
    "modernbert of full layers": Variant(
        "ModernBertModel", _MODERNBERT | {"global_attn_every_n_layers": 1}
    ),
    # As transformers 4 wrote and reads it for models of 32,768 tokens: for layers of both kinds.
    "modernbert with yarn": Variant("ModernBertModel", _MODERNBERT | {"rope_scaling": _YARN}),
    "modernbert with yarn by layer type": Variant(
        "ModernBertForTokenClassification",
        {key: value for key, value in _MODERNBERT.items() if "theta" not in key}
        | {
            "rope_parameters": {
                "full_attention": _YARN | {"rope_theta": 500.0, "attention_factor": 1.3},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
        3,
    ),
}
