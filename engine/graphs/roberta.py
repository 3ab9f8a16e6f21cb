"""RoBERTa and XLM-RoBERTa: BERT with positions that count from the padding id (arXiv 1907.11692).

Weight names and arithmetic are those of ``RobertaModel``, ``XLMRobertaModel`` and their heads in
transformers.
"""

from collections.abc import Mapping

from ..config import Task
from ..errors import BadArtifactError
from .builder import GraphBuilder
from .config_values import read, read_size
from .finished import Head
from .post_norm import Classifier, embed, encode, head, read_encoder

_DEFAULT_PADDING = 1  # of the configuration classes
_CLASSIFIER = Classifier("classifier.dense", "tanh", "classifier.out_proj")


def build_roberta(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids, mask and token types.

    Positions are those of transformers: tokens other than padding are counted, the first is
    pad_token_id + 1, and padding itself, also inside a text, has pad_token_id.
    """
    padding = read(config, "pad_token_id", int, _DEFAULT_PADDING)
    encoder = read_encoder(builder, config, "roberta", read_size(config, "type_vocab_size"))
    limit = encoder.positions.value - padding - 1
    if padding < 0 or limit < 1:
        raise BadArtifactError(
            f"config.json: 'pad_token_id' is {padding}, which leaves {limit} of"
            f" {encoder.positions.value} positions ('max_position_embeddings'); correct it"
        )
    x = embed(builder, encoder, encoder.hidden, _positions(builder, padding))
    x = encode(builder, encoder, x)
    return head(builder, config, task, encoder, x, _CLASSIFIER, limit)


def _positions(builder: GraphBuilder, padding: int) -> str:
    """Return the position of each token, int64 ``[batch, tokens]``."""
    is_padding = builder.op("Equal", ["input_ids", builder.scalar(padding)])
    zero, one = builder.scalar(0), builder.scalar(1)
    counted = builder.op("Where", [is_padding, zero, one])
    count = builder.op("Mul", [builder.op("CumSum", [counted, one]), counted])
    return builder.op("Add", [count, builder.scalar(padding)])
