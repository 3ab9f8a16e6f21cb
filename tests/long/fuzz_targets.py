"""What is fuzzed: the first inputs of each target, how they are changed, what reads them.

A reader may answer or raise an error of the engine, other than INTERNAL; it must not raise
anything else, hang, or end the process. Nothing that it says may hold the text.
"""

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from libsemantic.engine.artifacts import read_artifact
from libsemantic.engine.config import Precision, Shorten, Task
from libsemantic.engine.errors import SemanticError, UnsupportedError
from libsemantic.engine.graphs import FAMILIES, build_graph
from libsemantic.engine.onnx_file import inspect_onnx
from libsemantic.engine.onnx_outputs import select_output
from libsemantic.engine.tokenization import load_tokenizer
from libsemantic.engine.weights import load_array, read_weights
from tests.long.fuzz_calls import SECRET, first_calls, read_call
from tests.long.fuzz_mutations import (
    Json,
    Mutation,
    mutate_json,
    mutate_protobuf,
    mutate_safetensors,
)

Read: TypeAlias = Callable[[bytes, Path], None]

ROOT: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = ROOT / "tests" / "golden" / "models"
TEXTS: Final = (
    *("", "a", "ab ba", SECRET, f"{SECRET} é 日本 😀 [CLS] ##b\0", "a" * 300),
    *("\u200b", "e\u0301\u0302", "<unk><unk>", f" {SECRET}  \n\t "),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: its first inputs, how they change, and the reader itself."""

    first: Callable[[], Sequence[bytes]]
    mutate: Mutation
    read: Read


# Weights


def _first_weights() -> list[bytes]:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
        "c": {"dtype": "F16", "shape": [0, 4], "data_offsets": [26, 26]},
    }
    golden = (GOLDEN / "bert-seq" / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(golden[:8], "little")
    table = json.loads(golden[8:end])
    # The first few weights of the data: changes of one among many would seldom matter.
    names = sorted(table.keys() - {"__metadata__"}, key=lambda name: table[name]["data_offsets"])
    few = {name: table[name] for name in names[:4]}
    size = few[names[3]]["data_offsets"][1]
    return [
        _safetensors(header, bytes(26)),
        _safetensors({}, b""),
        _safetensors(few, golden[end : end + size]),
    ]


def _safetensors(header: Mapping[str, object], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _read_weights(data: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(data)
    for tensor in read_weights(folder).values():
        assert tensor.offset + tensor.nbytes <= len(data)
        if tensor.dtype in ("F32", "F16", "BF16"):
            assert load_array(tensor).shape == tensor.shape


# Graphs of weights


def _first_graphs() -> list[bytes]:
    folders = [GOLDEN / name for name in ("bert-seq", "bert-token", "bert-embed-mean")]
    return [(folder / "config.json").read_bytes() for folder in folders]


def _read_graph(data: bytes, folder: Path) -> None:
    """Build the graph of a golden model's weights with another configuration."""
    del folder
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(config, dict):
        for name, task in (
            ("bert-seq", Task.SEQUENCE_CLASSIFICATION),
            ("bert-token", Task.EMBEDDING),
        ):
            try:
                build_graph(config, task, read_weights(GOLDEN / name))
            except SemanticError as error:
                last = error
            else:
                continue
        raise last


# ONNX files


def _first_onnx() -> list[bytes]:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    ids = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "tokens"])
    out = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 2])
    table = numpy_helper.from_array(np.zeros((5, 2), np.float32), "table")
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    outside = onnx.TensorProto(name="outside", data_type=1, dims=[2])
    outside.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "4"), ("length", "8")):
        outside.external_data.add(key=key, value=value)
    constant = helper.make_node("Constant", [], ["c"], value=axis)
    inner = helper.make_graph([helper.make_node("Neg", ["e"], ["n"])], "inner", [], [out])
    function = helper.make_function(
        *("here", "F", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])]),
        [helper.make_opsetid("", 19)],
    )
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"]),
        helper.make_node("F", ["e"], ["f"], domain="here"),
        helper.make_node("If", ["t"], ["i"], then_branch=inner, else_branch=inner),
        constant,
        helper.make_node("ReduceMean", ["f", "axis"], ["logits"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "g", [ids], [out], [table, axis, outside])
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("here", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])
    folder = GOLDEN / "bert-seq"
    config = json.loads((folder / "config.json").read_text())
    built = build_graph(config, Task.SEQUENCE_CLASSIFICATION, read_weights(folder))
    return [model.SerializeToString(), built.model]


def _read_onnx(data: bytes, folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(12))
    (folder / "model.onnx").write_bytes(data)
    file = inspect_onnx(folder / "model.onnx")
    for task in (Task.SEQUENCE_CLASSIFICATION, Task.EMBEDDING):
        select_output(file, task, 2)


# Descriptions of a folder


def _first_folders() -> list[bytes]:
    """A folder is one JSON document: a file's content by its name, JSON or text."""
    folders: list[dict[str, Json]] = []
    for name in ("bert-seq", "bert-token", "bert-embed-mean", "bert-embed-cls", "bert-reranker"):
        files = sorted((GOLDEN / name).rglob("*.json"))
        folders.append(
            {
                str(file.relative_to(GOLDEN / name)): json.loads(file.read_text())
                for file in files
                if file.name != "tokenizer.json" and not file.name.startswith("expected")
            }
        )
    folders[0] |= {
        "label_mapping.json": {
            "id_to_label": {"0": "a", "1": "b"},
            "label_to_id": {"a": 0, "b": 1},
        },
        "labels.json": ["a", "b"],
        "tokenizer_config.json": {
            "model_max_length": 1e30,
            "pad_token": {"content": "[PAD]"},
            "model_input_names": ["input_ids"],
            "tokenizer_class": "BertTokenizer",
        },
    }
    folders[2] |= {
        "2_Dense/config.json": {
            "in_features": 64,
            "out_features": 8,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "2_Dense/model.safetensors": "",
        "config_sentence_transformers.json": {"prompts": {"q": "q: "}, "default_prompt_name": "q"},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True},
        "modules.json": [
            {"type": f"x.{kind}", "path": path}
            for kind, path in (
                ("Transformer", ""),
                ("Pooling", "1_Pooling"),
                ("Dense", "2_Dense"),
                ("Normalize", "3_Normalize"),
            )
        ],
    }
    index: dict[str, Json] = {
        "model.safetensors.index.json": {"weight_map": {"a": "s.safetensors"}}
    }
    return [json.dumps(each).encode() for each in (*folders, folders[0] | index)]


def _read_folder(data: bytes, folder: Path) -> None:
    try:
        files = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(files, dict):
        return
    for name, content in {"tokenizer.json": "", "s.safetensors": ""}.items():
        (folder / name).write_text(content)
    if "model.safetensors.index.json" not in files:
        (folder / "model.safetensors").write_bytes(b"")
    for name, content in files.items():
        path = Path(os.path.normpath(folder / name.replace("\0", "")[:100]))
        if not path.is_relative_to(folder) or path == folder:
            continue
        text = content if isinstance(content, str) else json.dumps(content)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        except (OSError, UnicodeEncodeError):  # a name that is a folder, or no name
            continue
    spec = read_artifact(
        str(folder), task=Task.AUTO, precision=Precision.AUTO, families=FAMILIES.keys()
    )
    json.dumps(dict(spec.config)).encode()
    for text in (*spec.warnings, *(name for name, _ in spec.files), *spec.prompts.values()):
        text.encode()
    for number in (
        spec.position_limit,
        spec.default_max_tokens,
        spec.hidden_size,
        *spec.dimensions,
    ):
        assert 0 <= number < 2**63


# Tokenizers


_NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
_SPECIAL: Final[Sequence[Json]] = [
    {"id": 3, "content": "[CLS]", **_NO_FLAGS, "special": True},
    {"id": 4, "content": "x", **_NO_FLAGS, "single_word": True, "lstrip": True},
]
_MODELS: Final[Sequence[Json]] = [
    {
        "type": "BPE",
        "dropout": None,
        "unk_token": "a",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {"a": 0, "b": 1, "ab": 2, "é": 5, "<0x00>": 6},
        "merges": [["a", "b"]],
    },
    {
        "type": "BPE",
        "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>",
        "unk_token": None,
        "vocab": {"a": 0, "##b": 1, "ab": 2, "##é": 3, "abé": 4},
        "merges": ["a ##b", "ab ##é"],
    },
    {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "##a": 6},
    },
    {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["ab", -1.5], ["▁", -3.0]],
        "byte_fallback": False,
    },
    {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "ab": 2}, "unk_token": "a"},
]
_CHARSMAP = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"abc\0").decode()
_NORMALIZERS: Final[Sequence[Json]] = [
    None,
    {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            {"type": "Prepend", "prepend": "▁"},
        ],
    },
    {"type": "Precompiled", "precompiled_charsmap": _CHARSMAP},
    {
        "type": "Sequence",
        "normalizers": [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "StripAccents"},
            {"type": "NFD"},
            {"type": "Nmt"},
            {"type": "Lowercase"},
            {"type": "ByteLevel"},
        ],
    },
]
_SPLIT: Final[Json] = {
    "type": "Split",
    "pattern": {"Regex": "\\p{L}+|\\s"},
    "behavior": "MergedWithNext",
    "invert": False,
}
_PRE_TOKENIZERS: Final[Sequence[Json]] = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "BertPreTokenizer"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {
        "type": "Sequence",
        "pretokenizers": [
            _SPLIT,
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": "Isolated"},
        ],
    },
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "FixedLength", "length": 5},
            {"type": "CharDelimiterSplit", "delimiter": "b"},
            {"type": "Whitespace"},
            {"type": "WhitespaceSplit"},
            {"type": "UnicodeScripts"},
        ],
    },
]
_POST_PROCESSORS: Final[Sequence[Json]] = [
    {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [3], "tokens": ["[CLS]"]}},
    },
    {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 4]},
    {
        "type": "RobertaProcessing",
        "sep": ["</s>", 3],
        "cls": ["<s>", 4],
        "trim_offsets": True,
        "add_prefix_space": True,
    },
    {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        ],
    },
    None,
]


def _first_tokenizers() -> list[bytes]:
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    truncation = {
        "direction": "Right",
        "max_length": 8,
        "strategy": "LongestFirst",
        "stride": 2,
    }
    parts = zip(_MODELS, _NORMALIZERS, _PRE_TOKENIZERS, _POST_PROCESSORS, strict=True)
    first = [
        {
            "version": "1.0",
            "truncation": truncation,
            "padding": padding,
            "added_tokens": list(_SPECIAL),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor,
            "decoder": None,
            "model": model,
        }
        for model, normalizer, pre_tokenizer, post_processor in parts
    ]
    golden = (GOLDEN / "bert-seq" / "tokenizer.json").read_bytes()
    return [*(json.dumps(each).encode() for each in first), golden]


def _read_tokenizer(data: bytes, folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(data)
    tokenizer = load_tokenizer(path)
    last: SemanticError | None = None
    for text in TEXTS:
        try:
            (encoded,) = tokenizer.encode([text], True)
            encoded.offsets()
        except SemanticError as error:
            last = error
    try:
        for encoded in tokenizer.encode_pairs(TEXTS[:4], TEXTS[1:5], True):
            encoded.offsets(Shorten.SECOND)
    except UnsupportedError:
        pass
    if last is not None:
        raise last


def _run_code(data: bytes, folder: Path) -> None:
    del folder
    exec(data)


TARGETS: Final[Mapping[str, Target]] = {
    "weights": Target(_first_weights, mutate_safetensors, _read_weights),
    "graphs": Target(_first_graphs, mutate_json, _read_graph),
    "onnx": Target(_first_onnx, mutate_protobuf, _read_onnx),
    "folders": Target(_first_folders, mutate_json, _read_folder),
    "tokenizers": Target(_first_tokenizers, mutate_json, _read_tokenizer),
    "calls": Target(first_calls, mutate_json, read_call),
}

# For the tests of the fuzzer itself: inputs are Python code.
CODE: Final = Target(lambda: [b""], mutate_json, _run_code)
