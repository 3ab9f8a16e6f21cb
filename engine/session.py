"""ONNX Runtime sessions: opened on the device that was asked for, verified, run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from .batching import RunControl, RunStoppedError, Window
from .devices import PRODUCT_MODEL, provider_list, require_assigned, require_one_runtime
from .errors import BadArtifactError, InternalError, SemanticError
from .initializers import Initializer, Make
from .memory import give_back_freed, require_threads
from .ort_messages import SILENT, load_error, run_error
from .providers import CPU_PROVIDER, Device
from .results import Float32
from .tokenization import start_threads

Output: TypeAlias = NDArray[np.generic]
Feeds: TypeAlias = Mapping[str, Output]
Value: TypeAlias = ort.OrtValue
Values: TypeAlias = Mapping[str, Value]
Answer = TypeVar("Answer")

_FLOAT32 = np.dtype(np.float32)
# How long the threads of a run stay awake between its operators, and once more after it. To sleep
# there costs a short text half its time; longer burns the host's CPUs, and gains nothing.
_SPIN_MICROSECONDS = "20"
# What a window of up to so many tokens is fed with: making an array takes 10 to 40 µs after a run.
_LONGEST_KEPT = 512
_ONES = np.ones((1, _LONGEST_KEPT), np.int64)
_ZEROS = np.zeros((1, _LONGEST_KEPT), np.int64)
_POSITIONS = np.arange(_LONGEST_KEPT)[None]


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
        """Open the graph and verify that the device runs all heavy operators of it.

        ``control`` lets others stop it; ONNX Runtime looks up between tensors, not while it folds
        constants.

        Raise BadArtifactError for a graph that ONNX Runtime refuses, OutOfMemoryError,
        RunStoppedError, or DeviceUnavailableError naming the operators the device does not run.
        """
        control = control or RunControl(())
        require_threads(threads - 1)  # the caller's is one of them
        made: list[Initializer] = []

        def create(model: str | bytes, makes: Sequence[Make]) -> ort.InferenceSession:
            options = _session_options(graph.weights_folder, device, threads)
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
            return ort.InferenceSession(
                model,
                sess_options=options,
                providers=provider_list(device, threads),
                enable_fallback=False,  # it would print, and go on with the CPU
            )

        try:
            self._parts = [(part, create(part.model, part.makes)) for part in graph.parts]
            self._session = create(graph.model, graph.makes)
        except (SemanticError, RunStoppedError):
            raise
        except Exception as error:
            raise (RunStoppedError() if control.stopped else load_error(error, device)) from None
        finally:
            control.stop = None
        self.inputs = graph.inputs
        self._outputs = [graph.output]
        self._idle_options: list[ort.RunOptions] = []
        self._memory, self._index = device.provider.memory, device.index
        self.provider = device.provider.name
        require_assigned(device, [*(session for _, session in self._parts), self._session])
        if made:
            self._drop(made, control)
        give_back_freed()

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

    def run(self, feeds: Feeds, control: RunControl) -> Output:
        """Run the graph on its inputs as far as ``control`` says, unless and until it stops it."""
        if self._memory:
            values = as_values(feeds)
            value = self._controlled(partial(self._bound_output, values, control.layer), control)
            found: Output = value.numpy()
            return found
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

    def _bound_output(self, values: Values, layer: int, options: ort.RunOptions) -> ort.OrtValue:
        """Run as ``_output``, while what goes from part to part stays on the device."""
        for part, session in self._parts:
            ends = part.layer == layer
            wanted = self._outputs[0] if ends else part.hidden
            value = self._bound(session, wanted, values, options)
            if ends:
                return value
            values = {name: values[name] for name in self.inputs} | {part.hidden: value}
        return self._bound(self._session, self._outputs[0], values, options)

    def _bound(
        self, session: ort.InferenceSession, wanted: str, values: Values, options: ort.RunOptions
    ) -> ort.OrtValue:
        """Run with values that may lie on the device, where the answer then lies too."""
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(wanted, self._memory, self._index)
        binding.synchronize_inputs()  # the copies to the device are on no stream of the run
        session.run_with_iobinding(binding, options)
        (answer,) = binding.get_outputs()
        return answer

    def run_values(self, values: Values, control: RunControl) -> ort.OrtValue:
        """Run a graph without exits with values that stay ONNX Runtime's own."""
        if self._memory:
            bound = partial(self._bound, self._session, self._outputs[0], values)
            return self._controlled(bound, control)
        run, outputs = self._session.run_with_ort_values, self._outputs
        return self._controlled(lambda options: run(outputs, values, options)[0], control)

    def keep(self, arrays: Feeds) -> Values:
        """Hand over arrays that many runs take: copied to the device if it has its own memory."""
        if not self._memory:
            return as_values(arrays)
        place = self._memory, self._index
        return {n: ort.OrtValue.ortvalue_from_numpy(each, *place) for n, each in arrays.items()}

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
            raise run_error(error) from None
        finally:
            control.stop = None
        if not control.stopped:
            self._idle_options.append(options)
        return output


def as_values(arrays: Feeds) -> dict[str, ort.OrtValue]:
    """Hand arrays over as ONNX Runtime's own values; on CPU without a copy."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


def _session_options(
    weights_folder: Path | None, device: Device, threads: int
) -> ort.SessionOptions:
    options = ort.SessionOptions()
    # Other providers have threads of their own, or none.
    options.intra_op_num_threads = threads if device.provider.name == CPU_PROVIDER else 1
    options.inter_op_num_threads = 1
    # Without an arena the C heap is left in pieces: it grew by 720 MB in a call that needs 450,
    # and kept 550. Runs give back what they do not need (_run_options).
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
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
        self._int64 = all(dtype == "int64" for dtype in runner.inputs.values())
        self._pad_id = pad_id
        self._token_types = token_types
        self.provider = runner.provider

    def run(self, windows: Sequence[Window], control: RunControl) -> list[Float32]:
        """Score windows together, as far as ``control`` says; return each output without padding.

        Outputs are float32[labels or hidden] or float32[tokens, labels or hidden].
        """
        lengths = [len(window.ids) for window in windows]
        longest = max(lengths)
        if len(lengths) == 1 and longest <= _LONGEST_KEPT and self._int64:
            feeds = self._feeds_of_one(windows[0], longest)
        else:
            feeds = {
                name: self._feed(name, dtype, windows, lengths, longest)
                for name, dtype in self._inputs.items()
            }
        output = self._runner.run(feeds, control)
        return _per_window(output, lengths, longest)

    def _feeds_of_one(self, window: Window, tokens: int) -> dict[str, Output]:
        """Return the int64 inputs of one short window, of which only the ids are made anew."""
        feeds: dict[str, Output] = {}
        for name in self._inputs:
            if name == "input_ids":
                feeds[name] = window.ids[None]
            elif name == "attention_mask":
                feeds[name] = _ONES[:, :tokens]
            elif name == "position_ids":
                feeds[name] = _POSITIONS[:, :tokens]
            else:
                feeds[name] = window.type_ids[None] if self._token_types else _ZEROS[:, :tokens]
        return feeds

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
        padded = np.full((len(rows), longest), self._pad_id if name == "input_ids" else 0, dtype)
        for index, row in enumerate(rows):
            padded[index, : len(row)] = row
        return padded


def _run_options() -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = SILENT
    # Else the arena stays as large as the largest input ever seen.
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _per_window(output: NDArray[Any], lengths: Sequence[int], longest: int) -> list[Float32]:
    shape = output.shape
    if len(shape) not in (2, 3) or shape[0] != len(lengths):
        raise BadArtifactError(
            f"the model's output has shape {list(shape)} for {len(lengths)} sequences of "
            f"{longest} tokens; expected [batch, width] or [batch, tokens, width]"
        )
    values = output
    if output.dtype is not _FLOAT32:  # one object for the type; to compare takes 40 µs after a run
        with np.errstate(all="ignore"):  # what overflows is refused
            values = output.astype(np.float32)
    if len(shape) == 2:
        return [values[0]] if len(lengths) == 1 else list(values)
    if shape[1] != longest:
        raise BadArtifactError(
            f"the model's output has {shape[1]} positions for {longest} tokens; expected one each"
        )
    return [values[index, :length] for index, length in enumerate(lengths)]


def first_run() -> None:
    """Run ONNX Runtime and start the threads of the tokenizers library.

    Their process-wide state exists from here on. Raise OutOfMemoryError if threads are refused,
    InterpreterError if packages of ONNX Runtime lie over one another.
    """
    require_one_runtime()
    start_threads()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(PRODUCT_MODEL, options, providers=[CPU_PROVIDER])
    session.run(None, dict.fromkeys("xw", np.ones((1, 1), np.float32)))
