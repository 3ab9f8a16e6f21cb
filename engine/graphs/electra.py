"""ELECTRA discriminators: BERT whose embeddings may be narrower (arXiv 2003.10555).

Weight names and arithmetic are those of ``ElectraModel`` and its heads in transformers; the
keys ``summary_*`` of config.json belong to heads that are not built here.
"""

from collections.abc import Mapping

from ..config import Task
from .blocks import token_positions
from .builder import GraphBuilder
from .config_values import read_size
from .finished import Head
from .post_norm import Classifier, embed, encode, head, read_encoder

_CLASSIFIER = Classifier("classifier.dense", "gelu", "classifier.out_proj")


def build_electra(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids, mask and token types."""
    encoder = read_encoder(builder, config, "electra", read_size(config, "type_vocab_size"))
    width = read_size(config, "embedding_size")
    x = embed(builder, encoder, width, token_positions(builder))
    if width.value != encoder.hidden.value:
        x = builder.linear(x, f"{encoder.prefix}embeddings_project", width, encoder.hidden)
    x = encode(builder, encoder, x)
    return head(builder, config, task, encoder, x, _CLASSIFIER, encoder.positions.value)
