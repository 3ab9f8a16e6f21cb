"""The longest texts that models say they take: equal to transformers, bounded in memory.

``make_longest.py`` computed the answers.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
TOKENS = 32_768
# Plain scores would take 17 GB; torch takes 4 GB for the masks of Gemma 3 alone.
LIMIT = 400 << 20

RUN = """
import json, sys
import numpy as np
from libsemantic.engine.config import Task
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.weights import read_weights
from {package}.golden.graph_runs import MODELS, Runner, config_of
from {package}.long.loaded_size import forget_peak, memory

name, tokens = sys.argv[1], int(sys.argv[2])
config = config_of(name) | {{"max_position_embeddings": 10 * tokens}}
graph = build_graph(config, Task.EMBEDDING, read_weights(MODELS / name))
runner = Runner(graph)
ids = np.arange(tokens)[None] * 7919 % 325 + 5
runner.run(ids[:, :100])
forget_peak()
before = memory("VmRSS")
states = runner.run(ids)[0]
grown = memory("VmHWM") - before
vector = states[-1] if "last" in name else states.mean(axis=0)
json.dump([graph.position_limit, grown, vector.tolist()], sys.stdout)
"""


@pytest.mark.parametrize("name", ["mmbert-embed-mean", "qwen3-embed-last", "gemma3-embed-mean"])
def test_the_longest_text_equals_transformers(name: str) -> None:
    expected = json.loads((HERE / "expected_longest.json").read_text())["answers"][name]
    code = RUN.format(package=__name__.split(".")[0])
    ran = subprocess.run(
        [sys.executable, "-c", code, name, str(TOKENS)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    limit, grown, vector = json.loads(ran.stdout)
    assert limit == TOKENS
    print(f"{name}: a run of {TOKENS} tokens took {grown >> 20} MB")
    assert grown <= LIMIT
    assert np.abs(np.array(vector) - expected).max() <= 1e-4 * np.abs(expected).max()
