"""Model families in the size of their best known models: config.json, and names and shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from random_models import MODERNBERT_BASE, modernbert_shapes

Shapes = dict[str, tuple[int, ...]]
Config = Mapping[str, object]

_BERT: Config = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
_ROBERTA: Config = {
    **_BERT,
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
_DISTILBERT: Config = {
    "model_type": "distilbert",
    "vocab_size": 30522,
    "dim": 768,
    "hidden_dim": 3072,
    "n_layers": 6,
    "n_heads": 12,
    "max_position_embeddings": 512,
    "activation": "gelu",
    "pad_token_id": 0,
}
_DEBERTA: Config = {
    **_BERT,
    "model_type": "deberta-v2",
    "vocab_size": 128100,
    "type_vocab_size": 0,
    "position_biased_input": False,
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
}
_QWEN3: Config = {
    "model_type": "qwen3",
    "vocab_size": 151669,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "pad_token_id": 0,
}
_GEMMA3: Config = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 2048,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
    "use_bidirectional_attention": True,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class _PostNorm:
    """Names of a post-norm encoder's weights, below a layer's name, as its checkpoints have them.

    ``square`` are linear layers from hidden to hidden.
    """

    layers: str
    square: tuple[str, ...]
    inner: str
    outer: str
    norms: tuple[str, str]


_BERT_NAMES = _PostNorm(
    layers="encoder.layer",
    square=(
        *(f"attention.self.{each}" for each in ("query", "key", "value")),
        "attention.output.dense",
    ),
    inner="intermediate.dense",
    outer="output.dense",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
)
_DEBERTA_NAMES = replace(
    _BERT_NAMES,
    square=(
        *(f"attention.self.{each}_proj" for each in ("query", "key", "value")),
        "attention.output.dense",
    ),
)
_DISTILBERT_NAMES = _PostNorm(
    layers="transformer.layer",
    square=tuple(f"attention.{each}_lin" for each in ("q", "k", "v", "out")),
    inner="ffn.lin1",
    outer="ffn.lin2",
    norms=("sa_layer_norm", "output_layer_norm"),
)


def _number(config: Config, *keys: str) -> int:
    """Return the first key that a config has as a number, 0 without one."""
    return next((int(str(config[key])) for key in keys if key in config), 0)


def _post_norm(config: Config, names: _PostNorm) -> Shapes:
    hidden = _number(config, "hidden_size", "dim")
    inner = _number(config, "intermediate_size", "hidden_dim")
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (_number(config, "vocab_size"), hidden),
        **_normed("embeddings.LayerNorm", hidden),
    }
    if config.get("position_biased_input", True):
        rows = _number(config, "max_position_embeddings")
        shapes["embeddings.position_embeddings.weight"] = (rows, hidden)
    if types := _number(config, "type_vocab_size"):
        shapes["embeddings.token_type_embeddings.weight"] = (types, hidden)
    if config.get("relative_attention"):
        rows = 2 * _number(config, "position_buckets")
        shapes["encoder.rel_embeddings.weight"] = (rows, hidden)
        shapes |= _normed("encoder.LayerNorm", hidden)
    for layer in range(_number(config, "num_hidden_layers", "n_layers")):
        stem = f"{names.layers}.{layer}"
        for name in names.square:
            shapes |= _linear(f"{stem}.{name}", hidden, hidden)
        shapes |= _linear(f"{stem}.{names.inner}", inner, hidden)
        shapes |= _linear(f"{stem}.{names.outer}", hidden, inner)
        for name in names.norms:
            shapes |= _normed(f"{stem}.{name}", hidden)
    return shapes


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _normed(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _decoder(config: Config, norms: tuple[str, ...]) -> Shapes:
    hidden, inner, depth = (
        _number(config, key) for key in ("hidden_size", "intermediate_size", "head_dim")
    )
    queries = depth * _number(config, "num_attention_heads")
    keys = depth * _number(config, "num_key_value_heads")
    linears = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: Shapes = {
        "embed_tokens.weight": (_number(config, "vocab_size"), hidden),
        "norm.weight": (hidden,),
    }
    for layer in range(_number(config, "num_hidden_layers")):
        stem = f"layers.{layer}"
        shapes |= {f"{stem}.{name}.weight": shape for name, shape in linears.items()}
        shapes |= {f"{stem}.self_attn.{name}_norm.weight": (depth,) for name in "qk"}
        shapes |= {f"{stem}.{name}_layernorm.weight": (hidden,) for name in norms}
    return shapes


_TWO_NORMS = ("input", "post_attention")
_FOUR_NORMS = (*_TWO_NORMS, "pre_feedforward", "post_feedforward")
_XLM_ROBERTA: Config = {**_ROBERTA, "model_type": "xlm-roberta", "vocab_size": 250002}
_ELECTRA: Config = {**_BERT, "model_type": "electra", "embedding_size": 768}
_MMBERT: Config = {**MODERNBERT_BASE, "vocab_size": 256000}

SIZES: Mapping[str, tuple[Config, Shapes]] = {
    "BERT-base": (_BERT, _post_norm(_BERT, _BERT_NAMES)),
    "RoBERTa-base": (_ROBERTA, _post_norm(_ROBERTA, _BERT_NAMES)),
    "XLM-RoBERTa-base": (_XLM_ROBERTA, _post_norm(_XLM_ROBERTA, _BERT_NAMES)),
    "DistilBERT-base": (_DISTILBERT, _post_norm(_DISTILBERT, _DISTILBERT_NAMES)),
    "ELECTRA-base": (_ELECTRA, _post_norm(_ELECTRA, _BERT_NAMES)),
    "DeBERTa-v3-base": (_DEBERTA, _post_norm(_DEBERTA, _DEBERTA_NAMES)),
    "ModernBERT-base": (MODERNBERT_BASE, modernbert_shapes(MODERNBERT_BASE)),
    "mmBERT-base": (_MMBERT, modernbert_shapes(_MMBERT)),
    "EmbeddingGemma-300m": (_GEMMA3, _decoder(_GEMMA3, _FOUR_NORMS)),
    "Qwen3-Embedding-0.6B": (_QWEN3, _decoder(_QWEN3, _TWO_NORMS)),
}
