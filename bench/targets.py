"""What the speed is meant to be, beside what was measured; what was not measured is never met."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contenders import BF16, INT8, OURS, RAW, TORCH, Report
from measure import Results, Value, mean_latency, p99, per_second
from texts import FIXED

TORCH_LIMITS = {32: 0.6, 128: 0.95, 512: 1.15}
INT8_LIMITS = {32: 0.55, 128: 0.55, 512: 0.67}
AMX_LIMITS = {32: 0.65, 128: 0.5, 512: 0.5}
AMX_ONE_THREAD = 0.4
AMX_THROUGHPUT = 2.2
COSINE = 0.999
OWN_MICROSECONDS = 100
# Under load: against one call at a time, against callers without batches, and the latency that one
# of a hundred answers exceeds by what it takes when all answers of the others come first.
CROWD_THROUGHPUT = 1.2
BATCH_THROUGHPUT = 1.5
TAIL = 4
CROWD = 32
# Less than it takes to wake a thread that waits.
QUEUED_MICROSECONDS = 50

ONE_MODEL = "one model"
NO_BATCHES = "one model, no batches"
THREE_MODELS = "three models at once"
LOAD_SHORT = f"3 to 16 tokens, {CROWD} callers"


@dataclass(frozen=True, slots=True)
class Target:
    """A limit and what was measured; ``absent`` says why there is nothing measured."""

    what: str
    limit: float
    at_least: bool
    measured: float | None
    absent: str = ""

    @property
    def verdict(self) -> str:
        """Say whether the limit is kept, or why that cannot be said."""
        if self.measured is None or self.absent:
            return self.absent or "not measured"
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "yes" if kept else "no"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the targets of one model hang on, beside its results.

    ``absent`` maps contenders that could not be measured to the reason; ``cosines`` are the
    smallest against our fp32. ``own_microseconds``: of a call, besides tokenising and running.
    """

    results: Results
    cpus: int
    amx: bool
    absent: dict[str, str]
    cosines: dict[str, float]
    own_microseconds: float | None = None


def fixed(tokens: int, callers: int = 1) -> str:
    """Name the workload of one length."""
    return f"{tokens} tokens, {callers} callers" if callers > 1 else f"{tokens} tokens"


def mixed(callers: int) -> str:
    """Name the workload of mixed lengths."""
    return f"mixed, {callers} caller{'s' * (callers > 1)}"


def one_thread(contender: str) -> str:
    """Name a contender of ours that was started with one thread."""
    return f"{contender}, 1 thread"


def targets_of(facts: Facts) -> list[Target]:
    """List the targets of one model."""
    own = "a call besides tokenising and running, median µs"
    return [
        *_against_peers(facts),
        Target(own, OWN_MICROSECONDS, False, facts.own_microseconds),
        *_int8(facts),
        *_bf16(facts),
    ]


def load_targets(results: Results, cpus: int) -> list[Target]:
    """List the targets of many callers, from one run without peers.

    What a call takes by itself is the mean latency of one caller, which has all CPUs. While so many
    callers wait, one call's turn comes after that time × callers / CPUs.
    """

    def failed(*places: tuple[str, str]) -> str:
        errors = any(results.has(*each) and results.errors(*each) for each in places)
        return "calls failed" if errors else ""

    def row(
        what: str,
        limit: float,
        workload: str,
        against: tuple[str, str],
        value: Value,
        against_value: Value,
        *,
        at_least: bool,
    ) -> Target:
        ours = ONE_MODEL, workload
        ratio = results.ratio(ours, against, value, against_value)
        return Target(what, limit, at_least, ratio, failed(ours, against))

    def turn(report: Report) -> float:
        return mean_latency(report) * CROWD / cpus

    alone = ONE_MODEL, mixed(1)
    words = f"mixed lengths, {CROWD} callers, "
    waits = results.queue_milliseconds(*alone) if results.has(*alone) else None
    return [
        row(
            f"{words}against one call at a time, throughput",
            *(CROWD_THROUGHPUT, mixed(CROWD), alone, per_second, per_second),
            at_least=True,
        ),
        row(
            f"{words}p99 against mean of one caller × callers / CPUs",
            *(TAIL, mixed(CROWD), alone, p99, turn),
            at_least=False,
        ),
        row(
            f"{LOAD_SHORT}, against no batches, throughput",
            *(BATCH_THROUGHPUT, LOAD_SHORT, (NO_BATCHES, LOAD_SHORT), per_second, per_second),
            at_least=True,
        ),
        Target(
            "mixed lengths, 1 caller, time in the queue, mean µs",
            QUEUED_MICROSECONDS,
            False,
            None if waits is None else 1e3 * waits,
            failed(alone),
        ),
    ]


def _against_peers(facts: Facts) -> Sequence[Target]:
    latency, throughput = facts.results.latency_ratio, facts.results.throughput_ratio
    rows = [
        _row(
            facts, f"{tokens} tokens against tokenise + raw run", 1.05, latency, RAW, fixed(tokens)
        )
        for tokens in FIXED
    ]
    rows += [
        _row(facts, f"{tokens} tokens against torch", limit, latency, TORCH, fixed(tokens))
        for tokens, limit in TORCH_LIMITS.items()
    ]
    what = "mixed lengths, {}, against the best raw setting"
    rows.append(_row(facts, what.format("1 caller"), 1.05, latency, RAW, mixed(1)))
    for callers in (8, 32):
        words = what.format(f"{callers} callers") + ", throughput"
        rows.append(_row(facts, words, 0.95, throughput, RAW, mixed(callers), at_least=True))
    return rows


def _row(
    facts: Facts,
    what: str,
    limit: float,
    ratio: Callable[[str, str, str], float | None],
    peer: str,
    workload: str,
    *,
    at_least: bool = False,
) -> Target:
    absent = "not measured" if peer in facts.absent else ""
    return Target(what, limit, at_least, ratio(OURS, peer, workload), absent)


def _int8(facts: Facts) -> Sequence[Target]:
    absent = "not available" if INT8 in facts.absent else ""
    ratio = facts.results.latency_ratio
    return [
        Target(
            f"{tokens} tokens, int8 against fp32, one thread",
            limit,
            False,
            ratio(one_thread(INT8), one_thread(OURS), fixed(tokens)),
            absent,
        )
        for tokens, limit in INT8_LIMITS.items()
    ]


def _bf16(facts: Facts) -> Sequence[Target]:
    """Without AMX the targets do not apply, whatever was measured."""
    absent = ""
    if not facts.amx:
        absent = "not applicable: no AMX"
    elif BF16 in facts.absent:
        absent = "not available"
    results = facts.results
    rows = []
    for tokens, limit in AMX_LIMITS.items():
        what = f"{tokens} tokens, bf16 against fp32, "
        alone = results.latency_ratio(one_thread(BF16), one_thread(OURS), fixed(tokens))
        all_cpus = results.latency_ratio(BF16, OURS, fixed(tokens))
        rows.append(Target(f"{what}one thread", AMX_ONE_THREAD, False, alone, absent))
        rows.append(Target(f"{what}{facts.cpus} threads", limit, False, all_cpus, absent))
    for tokens in (32, 128):
        ratio = results.throughput_ratio(BF16, OURS, fixed(tokens, 32))
        what = f"{tokens} tokens, 32 callers, bf16 against fp32, throughput"
        rows.append(Target(what, AMX_THROUGHPUT, True, ratio, absent))
    rows.append(Target("cosine of bf16 to fp32", COSINE, True, facts.cosines.get(BF16), absent))
    return rows
