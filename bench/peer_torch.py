"""The transformers library on torch, with its sdpa attention.

    python bench/peer_torch.py MODEL_FOLDER texts.json

Answers requests on standard input (closed_loop.py). Runs in the environment that `make setup-peers`
makes, which has nothing of libsemantic.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from closed_loop import Answer, Setting, main

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # read when imported

import torch
import transformers


class Torch:
    """One model in fp32."""

    def __init__(self, folder: Path, texts: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        entries = json.loads(texts.read_text())
        self._texts = [entry["text"] for entry in entries]
        self._tokens = [entry["tokens"] for entry in entries]
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._tokenizer.model_max_length = max(self._tokens)
        model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        )
        self._model = model.eval()

    def about(self) -> Mapping[str, str]:
        """Return names and versions."""
        return {"torch": torch.__version__, "transformers": transformers.__version__}

    def lengths(self) -> Sequence[int]:
        """Return the tokens of each text."""
        return self._tokens

    def prepare(self, setting: Setting) -> Answer:
        """Return what tokenises, runs and pools texts together."""

        def answer(texts: Sequence[int]) -> list[list[float]]:
            torch.set_num_threads(setting.threads)  # holds for the thread that says it
            inputs = self._tokenizer(
                [self._texts[text] for text in texts], padding=True, return_tensors="pt"
            )
            with torch.inference_mode():
                states = self._model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][:, :, None].to(states.dtype)
                sums = (states * mask).sum(dim=1)
                vectors: list[list[float]] = torch.nn.functional.normalize(sums).tolist()
            return vectors

        return answer


if __name__ == "__main__":
    main(Torch(Path(sys.argv[1]), Path(sys.argv[2])))
