"""One model under both loads: a session with the threads of all CPUs, and one with one thread.

A text that runs alone is done soonest by all CPUs together. Of many at a time each does best with
one CPU: to divide the work of every operator among threads that others keep busy costs a small
model 6 to 15 % of its throughput. ONNX Runtime fixes the threads of a session when it opens it, so
there are two; they share the mapped file, but each has its own packed copy of the matrices. A
larger model loses 3 %, and a second copy would be dear: it keeps one session.
"""

from collections.abc import Mapping

from .batching import RunControl
from .providers import CPU_PROVIDER, Device
from .session import Feeds, OrtModel, Output, Runner, Value, Values

_LARGE_BYTES = 192 << 20  # below the smallest model of base size, a DistilBERT of 255 MiB


class RunnerPair:
    """A graph opened twice; safe from any thread."""

    def __init__(self, wide: Runner, narrow: Runner) -> None:
        """Take ``wide`` for runs that are alone and ``narrow``, of one thread, for the others."""
        self._wide = wide
        self._narrow = narrow
        self.inputs: Mapping[str, str] = wide.inputs
        self.provider = wide.provider

    def run(self, feeds: Feeds, control: RunControl) -> Output:
        """Run the graph as ``Runner`` does."""
        return self._of(control).run(feeds, control)

    def run_values(self, values: Values, control: RunControl) -> Value:
        """Run the graph as ``Runner`` does."""
        return self._of(control).run_values(values, control)

    def keep(self, arrays: Feeds) -> Values:
        """Hand over arrays that many runs take, as ``Runner`` does; both take the same."""
        return self._wide.keep(arrays)

    def _of(self, control: RunControl) -> Runner:
        return self._wide if control.alone else self._narrow


def open_runner(
    graph: OrtModel,
    device: Device,
    *,
    threads: int,
    runs: int,
    weight_bytes: int,
    control: RunControl,
) -> Runner | RunnerPair:
    """Open a graph for up to so many runs at a time; raise as ``Runner`` does.

    Twice, if runs of several threads could meet on the CPU and the weights are not large.
    """
    wide = Runner(graph, device, threads=threads, control=control)
    meet = threads > 1 and runs > 1 and wide.provider == CPU_PROVIDER
    if not meet or weight_bytes > _LARGE_BYTES:
        return wide
    return RunnerPair(wide, Runner(graph, device, threads=1, control=control))
