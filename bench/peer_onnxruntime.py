"""Tokenizers and ONNX Runtime from Python, without libsemantic: what a user would write by hand.

    python bench/peer_onnxruntime.py MODEL_FOLDER texts.json MODEL.onnx

Answers requests on standard input (closed_loop.py). The graph is the one that libsemantic builds,
written beside the weights by contenders.py; a user would have to export one first.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from closed_loop import Answer, Setting, main
from numpy.typing import NDArray
from texts import read_tokenizer

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when it is imported

import onnxruntime as ort


class ByHand:
    """One model, opened once for each number of threads."""

    def __init__(self, folder: Path, texts: Path, graph: Path) -> None:
        self._texts = [entry["text"] for entry in json.loads(texts.read_text())]
        self._tokenizer = read_tokenizer(folder)
        self._lengths = [len(self._tokenizer.encode(text).ids) for text in self._texts]
        self._graph = graph
        self._sessions: dict[tuple[int, bool], ort.InferenceSession] = {}

    def about(self) -> Mapping[str, str]:
        """Return names and versions."""
        return {"onnxruntime": ort.__version__}

    def lengths(self) -> Sequence[int]:
        """Return the tokens of each text."""
        return self._lengths

    def prepare(self, setting: Setting) -> Answer:
        """Return what tokenises, runs and pools texts together."""
        key = (setting.threads, setting.spin)
        if key not in self._sessions:
            self._sessions[key] = self._open(*key)
        session = self._sessions[key]
        names = [each.name for each in session.get_inputs()]
        output = [session.get_outputs()[0].name]

        def answer(texts: Sequence[int]) -> list[list[float]]:
            encodings = self._tokenizer.encode_batch([self._texts[text] for text in texts])
            longest = max(len(encoding.ids) for encoding in encodings)
            shape = (len(encodings), longest)
            arrays = {
                "input_ids": np.zeros(shape, np.int64),  # the padding is masked
                "attention_mask": np.zeros(shape, np.int64),
                "token_type_ids": np.zeros(shape, np.int64),
            }
            for row, encoding in enumerate(encodings):
                length = len(encoding.ids)
                arrays["input_ids"][row, :length] = encoding.ids
                arrays["attention_mask"][row, :length] = 1
                arrays["token_type_ids"][row, :length] = encoding.type_ids
            (states,) = session.run(output, {name: arrays[name] for name in names})
            vectors: list[list[float]] = pooled(states, arrays["attention_mask"]).tolist()
            return vectors

        return answer

    def _open(self, threads: int, spin: bool) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
        return ort.InferenceSession(self._graph, options, providers=["CPUExecutionProvider"])


def pooled(states: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean of each text's token states at unit length, float32[texts, hidden]."""
    sums = (states * mask[:, :, None].astype(np.float32)).sum(axis=1)
    unit: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    folder, texts, graph = (Path(argument) for argument in sys.argv[1:])
    main(ByHand(folder, texts, graph))
