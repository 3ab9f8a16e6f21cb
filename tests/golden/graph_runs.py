"""Run built graphs on the golden models, and write their weights in other forms."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import onnxruntime
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import load_file

from libsemantic.engine.config import Task
from libsemantic.engine.graphs import Branches, Graph, build_graph
from libsemantic.engine.graphs.builder import DEFAULT_BRANCHES
from libsemantic.engine.weights import read_weights

MODELS = Path(__file__).parent / "models"
GOLDEN_TOLERANCE = 1e-4  # to transformers
SAME_TOLERANCE = 1e-5  # between one text alone and in a batch

Array = NDArray[np.float32]
Ids = NDArray[np.int64]
Arrays = Mapping[str, Array]
Config = dict[str, object]


@dataclass(frozen=True, slots=True)
class Golden:
    """What a golden model is: its task, and of an embedding how token states become a vector."""

    task: Task
    pool: str = ""


_SEQUENCE = Golden(Task.SEQUENCE_CLASSIFICATION)
_TOKEN = Golden(Task.TOKEN_CLASSIFICATION)
GOLDENS = {
    "bert-seq": _SEQUENCE,
    "bert-reranker": _SEQUENCE,
    "bert-token": _TOKEN,
    "bert-embed-mean": Golden(Task.EMBEDDING, "mean"),
    "bert-embed-cls": Golden(Task.EMBEDDING, "cls"),
    "roberta-seq": _SEQUENCE,
    "roberta-token": _TOKEN,
    "xlm-roberta-seq": _SEQUENCE,
    "distilbert-seq": _SEQUENCE,
    "electra-seq": _SEQUENCE,
    "deberta-v3-seq": _SEQUENCE,
    "deberta-v3-token": _TOKEN,
    "modernbert-seq-cls": _SEQUENCE,
    "modernbert-seq-mean": _SEQUENCE,
    "modernbert-nli": _SEQUENCE,
    "modernbert-token": _TOKEN,
    "modernbert-hallucination": _TOKEN,
    "mmbert-embed-mean": Golden(Task.EMBEDDING, "mean"),
    "qwen3-embed-last": Golden(Task.EMBEDDING, "last"),
    "gemma3-embed-mean": Golden(Task.EMBEDDING, "mean"),
}


class Case(TypedDict, total=False):
    """One text of a golden file."""

    input_ids: list[int]
    logits: list[float]
    embedding: list[float]


@cache
def _config_text(name: str) -> str:
    return (MODELS / name / "config.json").read_text()


def config_of(name: str) -> Config:
    config = json.loads(_config_text(name))
    assert isinstance(config, dict)
    return config


def built(name: str, *, fused: bool = True, branches: Branches = DEFAULT_BRANCHES) -> Graph:
    config, weights = config_of(name), read_weights(MODELS / name)
    return build_graph(config, GOLDENS[name].task, weights, fused=fused, branches=branches)


class Runner:
    """A session on a graph with the options of the engine's own sessions."""

    def __init__(self, graph: Graph) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_mem_pattern = False
        options.log_severity_level = 4  # expected failures of a run are not printed
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
        )
        self.graph = graph
        self.session = onnxruntime.InferenceSession(
            graph.model, options, providers=["CPUExecutionProvider"]
        )

    def run(self, ids: Ids, mask: Ids | None = None, types: Ids | None = None) -> Array:
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids) if mask is None else mask,
            "token_type_ids": np.zeros_like(ids) if types is None else types,
        }
        (output,) = self.session.run(
            [self.graph.output], {name: feeds[name] for name in self.graph.inputs}
        )
        assert output.dtype == np.float32
        result: Array = output
        return result

    def one(self, ids: list[int], types: list[int] | None = None) -> Array:
        type_ids = None if types is None else np.array([types], np.int64)
        result: Array = self.run(np.array([ids], np.int64), None, type_ids)[0]
        return result


@cache
def runner_of(name: str, *, fused: bool) -> Runner:
    return Runner(built(name, fused=fused))


def cases_of(name: str) -> list[Case]:
    cases: list[Case] = json.loads((MODELS / name / "expected.json").read_text())["cases"]
    assert len(cases) == 10
    return cases


def long_cases_of(name: str) -> list[Case]:
    """Return the texts of the second golden file that are not cut, with their ids."""
    tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / name / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    content = json.loads((MODELS / name / "expected_more.json").read_text())
    cases: list[Case] = []
    for case in content["cases"]:
        if case["token_count"] == case["scored_token_count"]:
            ids = tokenizer.encode(case["text"], case.get("text_pair")).ids
            cases.append(
                {"input_ids": ids, "embedding": case["embedding"]}
                if "embedding" in case
                else {"input_ids": ids, "logits": case["logits"]}
            )
    longest = max(len(case["input_ids"]) for case in cases)
    assert longest == content["max_tokens"] or "text_pair" in content["cases"][0]
    return cases


POOLS: Mapping[str, Callable[[Array], Array]] = {
    "mean": lambda hidden: hidden.mean(axis=0),
    "cls": lambda hidden: hidden[0],
    "last": lambda hidden: hidden[-1],
}


@cache
def dense_of(name: str) -> list[Array]:
    """Return the matrices that follow the pooling of an embedding model."""
    files = sorted((MODELS / name).glob("*_Dense/model.safetensors"))
    return [load_file(file)["linear.weight"] for file in files]


def golden_difference(name: str, runner: Runner, cases: Sequence[Case] = ()) -> float:
    """Return the largest difference from transformers over the ten golden texts, or over others.

    The goldens were computed without token types (all 0).
    """
    pool = GOLDENS[name].pool
    worst = 0.0
    for case in cases or cases_of(name):
        output = runner.one(case["input_ids"])
        if pool:
            vector = POOLS[pool](output)
            for weight in dense_of(name):
                vector = weight @ vector
            output, expected = vector / np.linalg.norm(vector), np.array(case["embedding"])
        else:
            expected = np.array(case["logits"])
        assert output.shape == expected.shape
        worst = max(worst, float(np.abs(output - expected).max()))
    return worst


def arrays_of(name: str) -> dict[str, Array]:
    arrays: dict[str, Array] = load_file(MODELS / name / "model.safetensors")
    return arrays


def stored(array: Array, dtype: str) -> tuple[bytes, Array]:
    """Return an array's bytes in ``dtype`` and the float32 values that these bytes stand for."""
    if dtype == "F16":
        half = array.astype("<f2")
        return half.tobytes(), half.astype(np.float32)
    if dtype == "BF16":  # round to the nearest upper half, ties to even
        bits = array.view(np.uint32)
        upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return upper.tobytes(), (upper.astype(np.uint32) << 16).view(np.float32)
    return array.astype("<f4").tobytes(), array


def write_file(path: Path, arrays: Arrays, dtype_of: Callable[[str], str]) -> None:
    header: dict[str, object] = {}
    data = b""
    for name, array in arrays.items():
        dtype = dtype_of(name)
        chunk, _ = stored(np.ascontiguousarray(array), dtype)
        places = [len(data), len(data) + len(chunk)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": places}
        data += chunk
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_shards(folder: Path, arrays: Arrays, dtype_of: Callable[[str], str]) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    halves = [dict(list(arrays.items())[::2]), dict(list(arrays.items())[1::2])]
    for shard, half in zip(names, halves, strict=True):
        write_file(folder / shard, half, dtype_of)
    weight_map = {key: shard for shard, half in zip(names, halves, strict=True) for key in half}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def graph_of(
    folder: Path, name: str, arrays: Arrays, dtype: str = "F32", *, fused: bool = True
) -> Graph:
    """Build the graph of a golden model with other weights, written into ``folder``."""
    folder.mkdir(exist_ok=True)
    write_file(folder / "model.safetensors", arrays, lambda _: dtype)
    return build_graph(config_of(name), GOLDENS[name].task, read_weights(folder), fused=fused)
