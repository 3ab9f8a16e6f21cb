"""ONNX Runtime sessions: opened on the device that was asked for, verified, run."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .batching import RunControl, RunStoppedError, Window
from .errors import (
    BadArtifactError,
    DeviceUnavailableError,
    InternalError,
    InvalidArgumentError,
    OutOfMemoryError,
    SemanticError,
)
from .initializers import Initializer, Make
from .memory import MORE_THREADS, require_threads
from .results import Float32
from .tokenization import start_threads

# Else ONNX Runtime, when it is imported, writes files into the user's cache folder and sends what
# it did to its makers. Only who has set the variable already may want that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

Output: TypeAlias = NDArray[np.generic]
Feeds: TypeAlias = Mapping[str, Output]
Values: TypeAlias = Mapping[str, ort.OrtValue]
Answer = TypeVar("Answer")

_TERMINATED = "terminate flag"
_THREAD_REFUSED = "pthread_create failed"
_OUT_OF_MEMORY = ("bad_alloc", "Failed to allocate", "failed to allocate")
# Where in its source a message comes from: file, line, and a function with its types.
_PLACE = re.compile(r"/onnxruntime_src/\S+:[0-9]+ .*?\)(?: const)?(?: \[with [^]]*\])? ", re.DOTALL)
_KIND = re.compile(r"\[ONNXRuntimeError\] : [0-9]+ : ([A-Z_]+) :")
_OPERATOR = re.compile(r"while running (\w+) node")
_SILENT = 4  # ONNX Runtime's "fatal": errors come as exceptions, not as lines on stderr

# Operators that a device must run itself, or it was not worth asking for.
_HEAVY = frozenset(
    {
        *("MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "MatMulNBits", "QLinearMatMul"),
        *("DynamicQuantizeMatMul", "FusedGemm", "Attention", "MultiHeadAttention"),
        "GroupQueryAttention",
    }
)

# One Identity node on one float: the smallest model there is. tests/unit/test_session.py
# builds it again and compares.
IDENTITY_MODEL = bytes.fromhex(
    "080812003a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a0208"
    "01620f0a0179120a0a08080112040a02080142040a00100d"
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a caller names it, and the execution provider that drives it."""

    name: str
    provider: str
    options: Mapping[str, str]

    @property
    def place(self) -> str:
        """Name the device itself, also where "auto" has found it."""
        return f"cuda:{self.options['device_id']}" if self.options else "cpu"


# Kind of device → execution provider, best first: "auto" takes the first installed one.
PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


def resolve_device(name: str) -> Device:
    """Resolve "auto", "cpu", "cuda" or "cuda:N".

    Raise InvalidArgumentError for another name and DeviceUnavailableError for a device
    whose provider is not installed.
    """
    installed = ort.get_available_providers()
    form = re.fullmatch(r"(auto|cpu|cuda)(?:(?<=cuda):([0-9]+))?", name or "auto")
    if form is None:
        raise InvalidArgumentError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    kind, index = form.groups()
    if kind == "auto":
        kind = next(kind for kind, provider in PROVIDERS.items() if provider in installed)
    provider = PROVIDERS[kind]
    if provider not in installed:
        raise DeviceUnavailableError(
            f"device {name!r} needs ONNX Runtime's {provider}, and this installation has "
            f"{', '.join(installed)}; install the GPU package or use cpu"
        )
    return Device(name or "auto", provider, {"device_id": index or "0"} if kind == "cuda" else {})


@dataclass(frozen=True, slots=True)
class OrtPart:
    """The layers of a model up to number ``layer``, from the end of the part before it.

    ``model`` takes the inputs of the whole, and from the part before it ``hidden``; it gives the
    output of the whole as if it ended here, and ``hidden`` for the part after it. ``makes`` give
    the initializers that lie in no file.
    """

    layer: int
    model: bytes
    hidden: str
    makes: tuple[Make, ...] = ()


@dataclass(frozen=True, slots=True)
class OrtModel:
    """A model for ONNX Runtime: a file, or bytes whose weights lie in ``weights_folder``.

    ``inputs`` maps names to dtypes; ``output`` is the one output that is computed. Where runs may
    end early, ``parts`` come before ``model``, which then takes the ``hidden`` of the last one.
    ``makes`` are those of ``model``, likewise.
    """

    model: str | bytes
    weights_folder: Path | None
    inputs: Mapping[str, str]
    output: str
    parts: tuple[OrtPart, ...] = ()
    makes: tuple[Make, ...] = ()


class Runner:
    """One graph on one device; safe from any thread."""

    def __init__(
        self,
        graph: OrtModel,
        device: Device,
        *,
        threads: int,
        control: RunControl | None = None,
    ) -> None:
        """Open the graph and verify that the device runs it.

        ``control`` lets others stop it; ONNX Runtime looks up between tensors, not while it folds
        constants.

        Raise BadArtifactError for a graph that ONNX Runtime refuses, OutOfMemoryError,
        RunStoppedError, or DeviceUnavailableError naming the operators the device does not run.
        """
        control = control or RunControl(())
        providers: list[tuple[str, dict[str, str]]] = [(device.provider, dict(device.options))]
        if device.provider != "CPUExecutionProvider":
            providers.append(("CPUExecutionProvider", {}))
        require_threads(threads - 1)  # the caller's is one of them
        made: list[Initializer] = []

        def create(model: str | bytes, makes: Sequence[Make]) -> ort.InferenceSession:
            options = _session_options(graph.weights_folder, threads)
            control.stop = partial(options.set_load_cancellation_flag, True)
            for make in makes:
                if control.stopped:
                    break
                own = make()
                given = as_values({each.name: each.values for each in own})
                options.add_external_initializers(list(given), list(given.values()))
                made.extend(own)
            if control.stopped:
                raise RunStoppedError
            # From the CPU to the CPU fallback would print, and try the same once more.
            fallback = len(providers) > 1
            return ort.InferenceSession(
                model, sess_options=options, providers=providers, enable_fallback=fallback
            )

        try:
            self._parts = [(part, create(part.model, part.makes)) for part in graph.parts]
            self._session = create(graph.model, graph.makes)
        except (SemanticError, RunStoppedError):
            raise
        except Exception as error:
            raise (RunStoppedError() if control.stopped else _load_error(error)) from None
        finally:
            control.stop = None
        for session in self._sessions():
            session.disable_fallback()
        self.inputs = graph.inputs
        self._outputs = [graph.output]
        self._idle_options: list[ort.RunOptions] = []
        self.provider = device.provider
        self.require(device)
        if made:
            self._drop(made, control)

    def _drop(self, made: Sequence[Initializer], control: RunControl) -> None:
        """Let go of initializers that the sessions have copied, and make sure that they have."""
        values = {"attention_mask": (1, 1), "input_ids": (0, 1)}  # the first row may be zeros
        text = {
            name: np.array([values.get(name, (0, 0))], kind) for name, kind in self.inputs.items()
        }
        before = self.run(text, control)
        for each in made:
            each.drop()
        if not np.array_equal(before, self.run(text, control), equal_nan=True):
            raise InternalError("ONNX Runtime still reads the weights it was given; use FP32")

    def _sessions(self) -> list[ort.InferenceSession]:
        return [*(session for _, session in self._parts), self._session]

    def require(self, device: Device) -> None:
        """Refuse a device that was named but runs less than all heavy operators."""
        if device.name == "auto":
            return
        if any(device.provider not in each.get_providers() for each in self._sessions()):
            raise DeviceUnavailableError(
                f"ONNX Runtime could not start {device.provider} for device {device.name!r}; "
                "check its driver and libraries, or use cpu"
            )
        elsewhere = {
            f"{node.op_type} on {part.ep_name}"
            for session in self._sessions()
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name != device.provider
            for node in part.get_nodes()
            if node.op_type in _HEAVY
        }
        if elsewhere:
            raise DeviceUnavailableError(
                f"device {device.name!r} does not run all of the model: "
                f"{', '.join(sorted(elsewhere))}; use cpu or a model for this device"
            )

    def run(self, feeds: Feeds, control: RunControl) -> Output:
        """Run the graph on its inputs as far as ``control`` says, unless and until it stops it."""
        return self._controlled(partial(self._output, feeds, control.layer), control)

    def _output(self, feeds: Feeds, layer: int, options: ort.RunOptions) -> Output:
        """Run the parts up to ``layer``, or all of them."""
        for part, session in self._parts:
            ends = part.layer == layer
            wanted = self._outputs if ends else [part.hidden]
            (value,) = session.run(wanted, feeds, options)
            if ends:
                found: Output = value
                return found
            feeds = {name: feeds[name] for name in self.inputs} | {part.hidden: value}
        (found,) = self._session.run(self._outputs, feeds, options)
        return found

    def run_values(self, values: Values, control: RunControl) -> ort.OrtValue:
        """Run a graph without exits with values that stay ONNX Runtime's own."""
        run, outputs = self._session.run_with_ort_values, self._outputs
        return self._controlled(lambda options: run(outputs, values, options)[0], control)

    def _controlled(self, run: Callable[[ort.RunOptions], Answer], control: RunControl) -> Answer:
        # Making one costs more than a run of a tiny model; a stopped one is not used again.
        try:
            options = self._idle_options.pop()
        except IndexError:
            options = _run_options()
        control.stop = partial(setattr, options, "terminate", True)
        if control.stopped:
            raise RunStoppedError
        try:
            output = run(options)
        except Exception as error:
            raise _run_error(error) from None
        finally:
            control.stop = None
        if not control.stopped:
            self._idle_options.append(options)
        return output


def as_values(arrays: Feeds) -> dict[str, ort.OrtValue]:
    """Hand arrays over as ONNX Runtime's own values; on CPU without a copy."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


def _session_options(weights_folder: Path | None, threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Without an arena the C heap is left in pieces: it grew by 720 MB in a call that needs 450,
    # and kept 550. Runs give back what they do not need (_run_options).
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    # Spinning burns the host's CPUs.
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if weights_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(weights_folder)
        )
    return options


class Runs(Protocol):
    """A graph, or graphs in a chain."""

    @property
    def inputs(self) -> Mapping[str, str]:
        """Names and dtypes of what it takes of a text: ids, mask, types, positions."""

    @property
    def provider(self) -> str:
        """The execution provider that runs it."""

    def run(self, feeds: Feeds, control: RunControl) -> Output:
        """Answer ``[batch, width]`` or ``[batch, tokens, width]``; see ``Runner.run``."""


class Session:
    """Scores windows with a model; safe from any thread."""

    def __init__(self, runner: Runs, *, pad_id: int, token_types: bool) -> None:
        """Feed windows to ``runner``.

        ``pad_id`` fills short rows; without ``token_types`` all tokens are of type 0.
        """
        self._runner = runner
        self._inputs = runner.inputs
        self._pad_id = pad_id
        self._token_types = token_types
        self.provider = runner.provider

    def run(self, windows: Sequence[Window], control: RunControl) -> list[Float32]:
        """Score windows together, as far as ``control`` says; return each output without padding.

        Outputs are float32[labels or hidden] or float32[tokens, labels or hidden].
        """
        lengths = [len(window.ids) for window in windows]
        longest = max(lengths)
        feeds = {
            name: self._feed(name, dtype, windows, lengths, longest)
            for name, dtype in self._inputs.items()
        }
        output = self._runner.run(feeds, control)
        return _per_window(output, lengths, longest)

    def _feed(
        self,
        name: str,
        dtype: str,
        windows: Sequence[Window],
        lengths: Sequence[int],
        longest: int,
    ) -> NDArray[np.generic]:
        if name == "attention_mask":
            if min(lengths) == longest:
                return np.ones((len(windows), longest), dtype)
            return (np.arange(longest) < np.array(lengths)[:, None]).astype(dtype)
        if name == "position_ids":  # artifacts refuses families that do not count from 0
            positions = np.arange(longest, dtype=dtype)
            return np.broadcast_to(positions, (len(windows), longest)).copy()
        rows = [window.ids if name == "input_ids" else window.type_ids for window in windows]
        if name != "input_ids" and not self._token_types:
            return np.zeros((len(windows), longest), dtype)
        if len(rows) == 1:
            return rows[0][None].astype(dtype, copy=False)
        padded = np.full((len(rows), longest), self._pad_id if name == "input_ids" else 0, dtype)
        for index, row in enumerate(rows):
            padded[index, : len(row)] = row
        return padded


def _run_options() -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = _SILENT
    # Else the arena stays as large as the largest input ever seen.
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _per_window(output: NDArray[np.generic], lengths: Sequence[int], longest: int) -> list[Float32]:
    shape = output.shape
    if len(shape) not in (2, 3) or shape[0] != len(lengths):
        raise BadArtifactError(
            f"the model's output has shape {list(shape)} for {len(lengths)} sequences of "
            f"{longest} tokens; expected [batch, width] or [batch, tokens, width]"
        )
    values = output.astype(np.float32, copy=False)
    if len(shape) == 2:
        return list(values)
    if shape[1] != longest:
        raise BadArtifactError(
            f"the model's output has {shape[1]} positions for {longest} tokens; expected one each"
        )
    return [values[index, :length] for index, length in enumerate(lengths)]


def _memory_refused(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _reason(error: Exception) -> str:
    """Return ONNX Runtime's own reason on one line, without its prefix and its own places."""
    text = _PLACE.sub("", str(error).replace("[ONNXRuntimeError] :", ""))
    return " ".join(text.split())[:600]


def _load_error(error: Exception) -> SemanticError:
    if _THREAD_REFUSED in str(error):
        return OutOfMemoryError(
            f"the system refused a thread of the model; {MORE_THREADS}, or lower intra_op_threads"
        )
    if _memory_refused(error):
        return OutOfMemoryError("the system refused the memory to load the model; free some")
    return BadArtifactError(
        f"ONNX Runtime refuses the model: {_reason(error)}; export or fetch it again"
    )


def _run_error(error: Exception) -> Exception:
    if _TERMINATED in str(error):
        return RunStoppedError()
    if _memory_refused(error):
        return OutOfMemoryError("the system refused the memory of a run; send shorter texts")
    # The rest may quote numbers, and numbers may be tokens of the caller's text.
    kind = _KIND.search(str(error))
    operators = " > ".join(_OPERATOR.findall(str(error)))
    return InternalError(
        f"ONNX Runtime failed in a run: {kind[1] if kind else type(error).__name__} in "
        f"{operators or 'no operator that it names'}; the model cannot score this text, check its "
        "export"
    )


def first_run() -> None:
    """Run ONNX Runtime and start the threads of the tokenizers library.

    Their process-wide state exists from here on. Raise OutOfMemoryError if threads are refused.
    """
    start_threads()
    device = resolve_device("cpu")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(IDENTITY_MODEL, options, providers=[device.provider])
    session.run(None, {"x": np.ones(1, np.float32)})
