"""Measure one model with every contender that can be started here."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from closed_loop import Setting
from contenders import (
    BF16,
    BUILD,
    INT8,
    KINDS,
    OURS,
    RAW,
    ROOT,
    Contender,
    Places,
    UnavailableError,
    start,
)
from machine import Machine
from measure import BATCHES, Say, Workload, agreement, measure, sweep
from random_models import MODERNBERT_BASE, modernbert_shapes, write_model
from report import SAME, ModelReport
from targets import Facts, fixed, mixed, one_thread, targets_of
from texts import Texts, as_json, make_texts, read_tokenizer

GOLDEN = ROOT / "tests/golden/models/modernbert-lora-base"
CALLERS = (1, 8, 32)
# Vectors of the same weights in fp32 agree so far; others only have a cosine to report.
SAME_VECTORS = 0.9999


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of one model is measured.

    ``passes`` through the list of mixed lengths in a slice, by callers; ``calls`` in a slice, by
    fixed length; rounds of slices, of the sweep and of the comparison; ``batches`` that are swept.
    """

    name: str
    title: str
    passes: dict[int, int]
    calls: dict[int, int]
    rounds: int
    sweep_rounds: int
    batches: tuple[int, ...] = BATCHES


PLANS = {
    "minilm": Plan(
        name="minilm",
        title="MiniLM (all-MiniLM-L6-v2)",
        passes={1: 1, 8: 4, 32: 8},
        calls={8: 40, 32: 30, 128: 12, 512: 4},
        rounds=5,
        sweep_rounds=2,
    ),
    "modernbert": Plan(
        name="modernbert",
        title="ModernBERT-base, random weights",
        passes={1: 1, 8: 2, 32: 4},
        calls={8: 8, 32: 6, 128: 3, 512: 2},
        rounds=3,
        sweep_rounds=1,
    ),
}


def model_folder(name: str) -> Path:
    """Return the folder of a model; the one of random weights is written if it is not there."""
    if name == "minilm":
        return BUILD / "models/minilm"
    folder = BUILD / "bench/models/modernbert-base"
    if not (folder / "tokenizer.json").exists():
        thetas = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
        write_model(folder, {**MODERNBERT_BASE, **thetas}, modernbert_shapes(MODERNBERT_BASE))
        for file in ("tokenizer_config.json", "tokenizer.json"):
            shutil.copy(GOLDEN / file, folder)
    return folder


def start_all(places: Places, report: ModelReport, stack: ExitStack, say: Say) -> None:
    """Start every contender that can be, and note why others cannot."""
    running = []
    for kind in KINDS:
        try:
            contender = start(kind, places)
        except UnavailableError as error:
            if kind.name == OURS:
                raise
            report.absent[kind.name] = str(error).replace(f"{ROOT}/", "")
            say(f"  {kind.name}: not available: {report.absent[kind.name]}")
        else:
            stack.callback(contender.worker.close)
            running.append(contender)
            say(f"  {kind.name}: {contender.worker.about}")
    report.contenders = running


def check_vectors(report: ModelReport, texts: Texts) -> None:
    """Refuse to compare programs that do not compute the same."""
    order = texts.mixed[:5]
    found = {each.name: each.worker.vectors(order, Setting(1)) for each in report.contenders}
    for name, vectors in found.items():
        if name == OURS:
            continue
        report.cosines[name] = agreement(found[OURS], vectors)
        if name not in (INT8, BF16) and report.cosines[name] < SAME_VECTORS:
            sys.exit(f"error: {name} and {OURS} agree to a cosine of {report.cosines[name]:.5f}")


def measure_model(plan: Plan, torch_python: Path | None, machine: Machine, say: Say) -> ModelReport:
    """Measure one model with everyone."""
    folder = model_folder(plan.name)
    texts = make_texts(read_tokenizer(folder))
    file = BUILD / "bench" / f"{plan.name}.texts.json"
    file.write_text(as_json(texts))
    places = Places(folder, file, torch_python)
    report = ModelReport(plan.title, (), CALLERS)
    cpus, results = machine.cpus, report.results
    say(plan.title)
    with ExitStack() as stack:
        start_all(places, report, stack, say)
        check_vectors(report, texts)
        all_mixed = [
            Workload(mixed(callers), texts.mixed * plan.passes[callers], callers)
            for callers in CALLERS
        ]
        all_fixed = [
            Workload(fixed(tokens), (texts.fixed[tokens],) * calls, 1)
            for tokens, calls in plan.calls.items()
        ]
        sweep(
            report.contenders, [*all_mixed, *all_fixed], cpus, plan.sweep_rounds, plan.batches, say
        )
        measure(report.contenders, all_mixed, plan.rounds, results, say)
        measure(
            [*report.contenders, same_settings(report, cpus)], all_fixed, plan.rounds, results, say
        )
        measure_precisions(places, report, texts, all_fixed, plan.rounds, stack, say)
    facts = Facts(
        results,
        cpus,
        machine.features["AMX"],
        report.absent,
        report.cosines,
        own_microseconds(places, say),
    )
    report.targets = targets_of(facts)
    return report


def own_microseconds(places: Places, say: Say) -> float:
    """Return what a call costs besides its parts, at the length where it costs most."""
    program = str(ROOT / "bench/call_time.py")
    command = [sys.executable, program, str(places.model), str(places.texts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    by_tokens: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    words = (f"{tokens} tokens {cost:.0f} µs" for tokens, cost in by_tokens.items())
    say(f"  a call besides tokenising and running: {', '.join(words)}")
    return max(by_tokens.values())


def same_settings(report: ModelReport, cpus: int) -> Contender:
    """Return ONNX Runtime by hand with the settings that libsemantic gives it."""
    raw = next(each for each in report.contenders if each.name == RAW)
    best = {name: Setting(cpus) for name in raw.best}
    return Contender(SAME, raw.kind, raw.worker, best)


def measure_precisions(
    places: Places,
    report: ModelReport,
    texts: Texts,
    all_fixed: Sequence[Workload],
    rounds: int,
    stack: ExitStack,
    say: Say,
) -> None:
    """Measure what the targets of int8 and bf16 ask besides: one thread, and many callers."""
    running = {each.name: each for each in report.contenders}
    kinds = [running[name].kind for name in (OURS, INT8, BF16) if name in running]
    if len(kinds) == 1:
        return
    alone = [start(kind, places, threads=1) for kind in kinds]
    for each in alone:
        assert each.name == one_thread(each.kind.name)
        stack.callback(each.worker.close)
    measure(alone, all_fixed, rounds, report.results, say)
    if BF16 in running:
        crowds = [
            Workload(fixed(tokens, 32), (texts.fixed[tokens],) * 128, 32) for tokens in (32, 128)
        ]
        measure([running[OURS], running[BF16]], crowds, rounds, report.results, say)
