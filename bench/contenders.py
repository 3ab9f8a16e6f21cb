"""The programs that are compared: started once, asked in turn, each idle while another is asked."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnxruntime
from closed_loop import Setting

from libsemantic.engine.artifacts import read_artifact
from libsemantic.engine.config import Precision, Task
from libsemantic.engine.graphs import FAMILIES, build_graph
from libsemantic.engine.weights import read_weights

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
HERE = ROOT / "bench"


class UnavailableError(Exception):
    """A contender cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one slice took: milliseconds of each answer, seconds of all, CPU seconds.

    ``queue_seconds``: of all answers together before they began to run; None where nobody knows.
    """

    latencies: tuple[float, ...]
    errors: int
    seconds: float
    cpu_seconds: float
    first_error: str = ""
    queue_seconds: float | None = None

    @property
    def per_second(self) -> float:
        """Return answers per second."""
        return len(self.latencies) / self.seconds


class Worker:
    """A program that answers requests line by line."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        """Start it and wait until it is ready. Raises UnavailableError if it says it cannot."""
        self._command = command
        self.start()

    def start(self) -> None:
        """Start it, again once it is closed."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        hello = self._answer()
        if "unavailable" in hello:
            self.close()
            raise UnavailableError(str(hello["unavailable"]))
        about = hello["about"]
        assert isinstance(about, dict)
        self.about: dict[str, str] = about

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            command = " ".join(map(str, self._command))
            raise UnavailableError(f"it ended with code {self._process.wait()}: {command}")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _ask(self, request: Mapping[str, object]) -> dict[str, object]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def run(
        self, order: Sequence[int], callers: int, setting: Setting, seconds: float = 0
    ) -> Report:
        """Let so many callers ask for the texts, each once or again and again for seconds."""
        request = {"order": list(order), "callers": callers, "setting": asdict(setting)}
        report = self._ask(request | {"seconds": seconds})
        latencies = report.get("latencies_ms", [])
        assert isinstance(latencies, list)
        return Report(
            tuple(latencies),
            int(str(report["errors"])),
            float(str(report["seconds"])),
            float(str(report["cpu_seconds"])),
            str(report.get("first_error", "")),
            float(str(report["queue_seconds"])) if "queue_seconds" in report else None,
        )

    def vectors(self, order: Sequence[int], setting: Setting) -> list[list[float]]:
        """Embed the texts one by one."""
        request = {"order": list(order), "setting": asdict(setting), "vectors": True}
        vectors = self._ask(request)["vectors"]
        assert isinstance(vectors, list)
        return vectors

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of ``KINDS``: a contender's name, how it is started, and what can be set per request.

    ``sweeps``: threads and batches are tried and the best setting is taken. ``note``: what it
    does not do.
    """

    name: str
    note: str
    program: str
    arguments: tuple[str, ...] = ()
    environment: str = ""
    sweeps: bool = False
    batches: bool = False


OURS = "libsemantic fp32"
RAW = "onnxruntime (Python)"
TORCH = "transformers (torch sdpa)"
GO_PEER = "onnxruntime_go"
INT8 = "libsemantic int8"
BF16 = "libsemantic bf16"

# The environment that `make setup PROVIDER=openvino` makes; where it is not there, the default one
# answers for itself.
OPENVINO_ENVIRONMENT = "env-openvino"

KINDS = (
    Kind(OURS, "through the Go binding, default options", "load", ("fp32", "cpu")),
    Kind(INT8, "the same, weights in 8 bits", "load", ("int8", "cpu")),
    Kind(
        BF16, "the same on OpenVINO", "load", ("bf16", "openvino"), environment=OPENVINO_ENVIRONMENT
    ),
    Kind(
        RAW,
        "tokenizers, our graph, pooling by hand; no statuses, no limits, no queue",
        "onnxruntime",
        sweeps=True,
        batches=True,
    ),
    Kind(TORCH, "fp32, from Python; no statuses, no queue", "torch", sweeps=True, batches=True),
    Kind(
        GO_PEER,
        "github.com/yalue/onnxruntime_go, our graph; given tokens, it has no tokenizer",
        "go_peer",
        sweeps=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a model lies, the file of its texts, and the Python that has torch, if any."""

    model: Path
    texts: Path
    torch_python: Path | None


@dataclass(slots=True)
class Contender:
    """A contender that runs, with the best setting found for each workload by its name."""

    name: str
    kind: Kind
    worker: Worker
    best: dict[str, Setting] = field(default_factory=dict)

    def setting(self, workload: str) -> Setting:
        """Return the setting for a workload; what cannot be set has the default one."""
        return self.best.get(workload, Setting(threads=0))


def start(kind: Kind, places: Places, threads: int = 0) -> Contender:
    """Start a contender; ``threads`` of one run are for our library, 0 is its default.

    Raises UnavailableError where it cannot be measured here.
    """
    name = f"{kind.name}, {threads} thread" if threads else kind.name
    return Contender(name, kind, _STARTERS[kind.program](kind, places, threads))


def _start_load(kind: Kind, places: Places, threads: int) -> Worker:
    precision, device = kind.arguments
    command: list[str | Path] = [BUILD / "bin/load", "-serve", "-texts", places.texts]
    command += ["-max-tokens", "512", "-precision", precision, "-device", device]
    environment = BUILD / kind.environment
    if kind.environment and environment.exists():
        command += ["-environment", environment]
    return Worker([*command, "-threads", str(threads), places.model])


def start_together(places: Places, count: int, *options: str) -> Worker:
    """Start our library with one model loaded so often; each request asks all of them."""
    command: list[str | Path] = [BUILD / "bin/load", "-serve", "-texts", places.texts, *options]
    return Worker([*command, "-max-tokens", "512", "-device", "cpu", *[places.model] * count])


def _start_onnxruntime(_: Kind, places: Places, __: int) -> Worker:
    graph, _names, _output = write_graph(places.model)
    return Worker([sys.executable, HERE / "peer_onnxruntime.py", places.model, places.texts, graph])


def _start_torch(_: Kind, places: Places, __: int) -> Worker:
    if places.torch_python is None:
        raise UnavailableError("torch is not installed; `make setup-peers` installs it")
    return Worker([places.torch_python, HERE / "peer_torch.py", places.model, places.texts])


def _start_go_peer(_: Kind, places: Places, __: int) -> Worker:
    program = BUILD / "bin/go_peer"
    if not program.exists():
        raise UnavailableError("build/bin/go_peer was not built; `make bench` says why")
    libraries = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    library = next(libraries, None)
    if library is None:
        raise UnavailableError("the onnxruntime package has no libonnxruntime.so")
    graph, names, output = write_graph(places.model)
    command: list[str | Path] = [program, "-library", library, "-texts", places.texts]
    return Worker([*command, "-model", graph, "-inputs", ",".join(names), "-output", output])


_STARTERS = {
    "load": _start_load,
    "onnxruntime": _start_onnxruntime,
    "torch": _start_torch,
    "go_peer": _start_go_peer,
}


def write_graph(folder: Path) -> tuple[Path, tuple[str, ...], str]:
    """Write our graph as a file, with its weights beside it.

    Return the file, the names of its inputs and of its output.
    """
    spec = read_artifact(
        str(folder), task=Task.EMBEDDING, precision=Precision.FP32, families=FAMILIES.keys()
    )
    graph = build_graph(spec.config, spec.task, read_weights(spec.model_folder))
    target = BUILD / "bench" / "graphs" / folder.name
    target.mkdir(parents=True, exist_ok=True)
    # A copy: ONNX Runtime refuses links that leave the folder, and others files with two names.
    shutil.copyfile(folder / "model.safetensors", target / "model.safetensors")
    file = target / "model.onnx"
    file.write_bytes(graph.model)
    return file, graph.inputs, graph.output
