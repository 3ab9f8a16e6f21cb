"""The statistics: states of models, their counters, and memory, in columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

import numpy as np

from .config import Task
from .counters import BATCH_BOUNDS, BUCKET_BOUNDS, Call, CallCounters, Histogram, Phase
from .results import Stats, UInt64


class State(IntEnum):
    """States of a model; values of ``semantic_model_state``."""

    LOADING = 1
    READY = 2
    STOPPING = 3


def column(values: Iterable[int]) -> UInt64:
    """Make one unsigned column of a result."""
    return np.array(list(values), np.uint64)


def tabulate(
    running: bool,
    models: Sequence[tuple[int, str, Task, State, str]],
    calls: Sequence[tuple[int, str, Mapping[Call, CallCounters]]],
    memory: Sequence[tuple[str, int]],
) -> Stats:
    """Lay out the statistics in columns.

    ``models``: handle, name, task, state, device; ``calls``: handle, name and counters of each
    model; ``memory``: owner and bytes.
    """
    states = [state for _, _, _, state, _ in models]
    entries = [
        (handle, name, call, counters)
        for handle, name, by_call in calls
        for call, counters in sorted(by_call.items())
    ]

    by_entry = [counters for _, _, _, counters in entries]

    def counted(count: Callable[[CallCounters], int]) -> UInt64:
        return column(map(count, by_entry))

    def buckets(histogram: Callable[[CallCounters], Histogram]) -> UInt64:
        return np.array([histogram(counters).counts for counters in by_entry], np.uint64)

    phases = [list(counters.phases.values()) for counters in by_entry]
    return Stats(
        running=running,
        models_loading=states.count(State.LOADING),
        models_ready=states.count(State.READY),
        models_stopping=states.count(State.STOPPING),
        model_id=column(handle for handle, *_ in models),
        model_name=tuple(name for _, name, *_ in models),
        model_task=np.array([task for _, _, task, *_ in models], np.int32),
        model_state=np.array(states, np.int32),
        call_model_id=column(handle for handle, _, _, _ in entries),
        call_model_name=tuple(name for _, name, _, _ in entries),
        call=np.array([call for _, _, call, _ in entries], np.int32),
        accepted=counted(lambda c: c.accepted),
        completed=counted(lambda c: c.completed),
        failed=counted(lambda c: c.failed),
        expired=counted(lambda c: c.expired),
        cancelled=counted(lambda c: c.cancelled),
        in_flight=counted(lambda c: c.in_flight),
        refused=counted(lambda c: c.refused),
        tokens=counted(lambda c: c.tokens),
        truncated=counted(lambda c: c.truncated),
        batches=counted(lambda c: c.batches),
        bucket_bounds=np.array(BUCKET_BOUNDS, np.float64),
        latency=buckets(lambda c: c.latency),
        memory_owner=tuple(owner for owner, _ in memory),
        memory_bytes=np.array([size for _, size in memory], np.int64),
        latency_seconds=np.array([c.latency.total for c in by_entry], np.float64),
        phase_count=len(Phase),
        phase_latency=np.array([[each.counts for each in row] for row in phases], np.uint64),
        phase_seconds=np.array([[each.total for each in row] for row in phases], np.float64),
        batch_bounds=np.array(BATCH_BOUNDS, np.uint64),
        batch_rows=buckets(lambda c: c.batch_rows),
        batch_rows_sum=counted(lambda c: int(c.batch_rows.total)),
        padding_tokens=counted(lambda c: c.padding_tokens),
        model_device=tuple(device for *_, device in models),
    )
