"""DistilBERT: BERT without token types and pooler (arXiv 1910.01108).

Weight names and arithmetic are those of ``DistilBertModel`` and its heads in transformers.
``sinusoidal_pos_embds`` only says how the stored table of positions was begun.
"""

from collections.abc import Mapping

from ..config import Task
from .blocks import token_positions
from .builder import GraphBuilder
from .finished import Head
from .post_norm import Classifier, Keys, LayerNames, embed, encode, head, read_encoder

_LAYERS = LayerNames(
    layers="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attended="attention.out_lin",
    attended_norm="sa_layer_norm",
    inner="ffn.lin1",
    outer="ffn.lin2",
    outer_norm="output_layer_norm",
)
_KEYS = Keys(
    hidden="dim",
    inner="hidden_dim",
    heads="n_heads",
    layers="n_layers",
    activation="activation",
    epsilon="",  # there is no such key: it is always the default
)
_CLASSIFIER = Classifier("pre_classifier", "relu", "classifier")


def build_distilbert(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids and mask."""
    encoder = read_encoder(builder, config, "distilbert", None, names=_LAYERS, keys=_KEYS)
    x = embed(builder, encoder, encoder.hidden, token_positions(builder))
    x = encode(builder, encoder, x)
    return head(builder, config, task, encoder, x, _CLASSIFIER, encoder.positions.value)
