"""BERT: post-norm encoder with learned positions and token types (arXiv 1810.04805).

Weight names and arithmetic are those of ``BertModel`` and its heads in transformers.
"""

from collections.abc import Mapping

from ..config import Task
from .blocks import token_positions
from .builder import GraphBuilder
from .config_values import read_size
from .finished import Head
from .post_norm import Classifier, embed, encode, head, read_encoder


def build_bert(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids, mask and token types."""
    encoder = read_encoder(builder, config, "bert", read_size(config, "type_vocab_size"))
    x = embed(builder, encoder, encoder.hidden, token_positions(builder))
    x = encode(builder, encoder, x)
    classifier = Classifier(f"{encoder.prefix}pooler.dense", "tanh", "classifier")
    return head(builder, config, task, encoder, x, classifier, encoder.positions.value)
