"""Every family at the size that people use: shapes hold, and a load takes no second copy.

The folders hold random weights, made here. A new family is a row of ``SIZES``.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import pytest

from ..golden.graph_runs import MODELS
from ..golden.variants import Config, Shapes, shapes
from .size import SIZE

HERE = Path(__file__).parent
LABELS = 7
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """A family's base size: architecture, configuration, and a golden that lends its tokenizer.

    ``limit``: tokens of the longest text. ``call``: bytes that a call of that length may take.
    """

    architecture: str
    task: str
    config: Config
    golden: str
    limit: int
    call: int


_BASE: Config = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
_ROBERTA: Config = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
_DEBERTA: Config = {
    "model_type": "deberta-v2",
    "vocab_size": 128_100,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
_QWEN3: Config = {  # Qwen3-Embedding-0.6B, with fewer words
    "vocab_size": 50_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "max_position_embeddings": 32_768,
}
_GEMMA3: Config = {  # EmbeddingGemma-300M, with fewer words
    "vocab_size": 50_000,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
    "max_position_embeddings": 2048,
}
_MODERNBERT: Config = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
_SEQUENCE = "ForSequenceClassification"
_TOKEN = "ForTokenClassification"
_EMBEDDING = "Model"
SIZES = {
    "bert": Size(
        "Bert", _SEQUENCE, _BASE | {"vocab_size": 30_522}, "bert-seq", 512, 128 * MEGABYTE
    ),
    "roberta": Size(
        "Roberta",
        _SEQUENCE,
        _BASE | _ROBERTA | {"vocab_size": 50_265},
        "roberta-seq",
        512,
        128 * MEGABYTE,
    ),
    "xlm-roberta": Size(
        "XLMRoberta",
        _SEQUENCE,
        _BASE | _ROBERTA | {"vocab_size": 250_002},
        "xlm-roberta-seq",
        512,
        128 * MEGABYTE,
    ),
    "distilbert": Size(
        "DistilBert",
        _SEQUENCE,
        {
            "vocab_size": 30_522,
            "dim": 768,
            "hidden_dim": 3072,
            "n_layers": 6,
            "n_heads": 12,
            "activation": "gelu",
            "max_position_embeddings": 512,
        },
        "distilbert-seq",
        512,
        128 * MEGABYTE,
    ),
    "electra": Size(
        "Electra",
        _SEQUENCE,
        _BASE | {"vocab_size": 30_522, "embedding_size": 768},
        "electra-seq",
        512,
        128 * MEGABYTE,
    ),
    "deberta-v2": Size(
        "DebertaV2", _TOKEN, _BASE | _DEBERTA, "deberta-v3-token", 512, 192 * MEGABYTE
    ),
    "modernbert": Size(
        "ModernBert", _SEQUENCE, _MODERNBERT, "modernbert-seq-cls", 8192, 700 * MEGABYTE
    ),
    # 1.2 × of what torch takes for a call (transformers 5.24, sdpa): 450 and 102 MB.
    "qwen3": Size("Qwen3", _EMBEDDING, _QWEN3, "qwen3-embed-last", 8192, 540 * MEGABYTE),
    "gemma3_text": Size(
        "Gemma3Text", _EMBEDDING, _GEMMA3, "gemma3-embed-mean", 2048, 122 * MEGABYTE
    ),
}


# They speak of the golden's own width and length.
_SENTENCE_TRANSFORMERS = ("modules.json", "*_Dense", "sentence_bert_config.json")


def write_weights(path: Path, tensors: Shapes) -> None:
    """Write random float32 weights, one after the other, the same at every call."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    random = np.random.default_rng(6)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            values = random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
            (values if len(shape) > 1 else values + 1).tofile(file)


def write_folder(folder: Path, size: Size, family: str) -> None:
    shutil.copytree(
        MODELS / size.golden,
        folder,
        ignore=shutil.ignore_patterns("expected*", "*.safetensors", *_SENTENCE_TRANSFORMERS),
    )
    config: Mapping[str, object] = size.config | {
        "model_type": family,
        "architectures": [size.architecture + size.task],
        "id2label": {str(index): f"label {index}" for index in range(LABELS)},
    }
    (folder / "config.json").write_text(json.dumps(config))
    if size.task == _EMBEDDING:
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
        pooling["word_embedding_dimension"] = config["hidden_size"]
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    options = json.loads((folder / "tokenizer_config.json").read_text())
    options["model_max_length"] = size.limit
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    write_weights(folder / "model.safetensors", shapes(config, size.task, LABELS))


# The most that a load may take, at its peak and after it, as a share of the file. In int8 the C
# heap keeps a part of what DeBERTa's projected distances took while they were folded.
MEMORY = {"FP32": (1.2, 1.2), "INT8": (0.85, 0.36)}
_KEPT_OF_DEBERTA = 0.5


@pytest.mark.parametrize("precision", MEMORY)
@pytest.mark.parametrize("family", SIZES)
def test_a_base_size_folder_loads_in_the_memory_of_its_file(
    tmp_path: Path, family: str, precision: str
) -> None:
    size = SIZES[family]
    if SIZE < 0.1 and size.config.get("vocab_size", 0) != 30_522:
        pytest.skip("a look takes the smaller ones")
    folder = tmp_path / family
    write_folder(folder, size, family)
    file = (folder / "model.safetensors").stat().st_size
    assert file > 250 * MEGABYTE
    script, small = str(HERE / "loaded_size.py"), str(MODELS / size.golden)
    ran = subprocess.run(
        [sys.executable, script, small, str(folder), precision],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    shutil.rmtree(folder)  # gigabytes, which pytest would keep
    assert (ran.returncode, ran.stderr) == (0, "")
    numbers = json.loads(ran.stdout)
    print(
        f"{family} {precision}: file {file >> 20} MB, load {numbers['peak'] / file:.2f} of it at"
        f" the peak and {numbers['loaded'] / file:.2f} after, {numbers['seconds']:.1f} s; a call of"
        f" {numbers['tokens']} tokens {numbers['call'] >> 20} MB"
    )
    assert numbers["tokens"] == size.limit
    rows = size.limit - 2 if size.task == _TOKEN else 1  # without the template's own
    width = size.config["hidden_size"] if size.task == _EMBEDDING else LABELS
    assert numbers["shape"] == [rows, width]
    peak, loaded = MEMORY[precision]
    if (family, precision) == ("deberta-v2", "INT8"):
        loaded = _KEPT_OF_DEBERTA
    assert numbers["peak"] <= peak * file
    assert numbers["loaded"] <= loaded * file
    assert numbers["call"] <= size.call
