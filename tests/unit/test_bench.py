"""The parts of the benchmark that decide what its numbers mean."""

import io
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import peers
import pytest
from closed_loop import Setting, run, serve
from contenders import KINDS, OURS, RAW, TORCH, Contender, Kind, Report, Worker
from load_table import LoadReport, held_share
from machine import Machine, describe, read_busy, read_cpu
from measure import (
    BATCHES,
    Results,
    Workload,
    agreement,
    label,
    measure,
    percentile,
    settings_to_try,
    sweep,
)
from plot import Panel, draw
from report import (
    BUSY,
    SAME,
    ModelReport,
    between,
    fixed_table,
    load_table,
    mixed_table,
    number,
    settings_lines,
    summary,
    table,
    targets_table,
    write_report,
)
from targets import (
    LOAD_SHORT,
    NO_BATCHES,
    ONE_MODEL,
    Facts,
    Target,
    fixed,
    load_targets,
    mixed,
    one_thread,
    targets_of,
)
from texts import FIXED, MIXED, SHORT, as_json, make_text, make_texts, read_tokenizer

from libsemantic.engine.registry import Registry

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "models"


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        (range(100, 0, -1), 50, 50),
        (range(100, 0, -1), 99, 99),
        (range(200, 0, -1), 99, 198),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 99, 4.0),
        ([7.0], 1, 7.0),
    ],
)
def test_percentiles_are_nearest_ranks(
    values: Sequence[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


# ---- Texts ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-embed-mean", "modernbert-lora-base"])
def test_texts_have_the_lengths_they_say(name: str) -> None:
    tokenizer = read_tokenizer(GOLDEN / name)
    texts = make_texts(tokenizer)
    lengths = [len(tokenizer.encode(text.text).ids) for text in texts.all]
    assert lengths == [*MIXED, *SHORT, *FIXED]
    assert [lengths[place] for place in texts.mixed] == list(MIXED)
    assert {tokens: lengths[place] for tokens, place in texts.fixed.items()} == {
        tokens: tokens for tokens in FIXED
    }
    assert (min(MIXED), max(MIXED)) == (3, 400)
    first = json.loads(as_json(texts))[1]
    assert first["ids"] == tokenizer.encode(first["text"]).ids
    assert len({text.text[:12] for text in texts.all}) > len(texts.all) // 2


# ---- Callers ----------------------------------------------------------------


def test_callers_ask_again_once_they_are_answered() -> None:
    order = [0, 1, 2, 3] * 5
    asked: list[int] = []
    both = threading.Barrier(2, timeout=10)

    def answer(texts: Sequence[int]) -> list[list[float]]:
        both.wait()  # two runs at a time, or nothing moves
        asked.extend(texts)
        return [[] for _ in texts]

    report = run(answer, order, 4, Setting(1, runs=2), [1] * 4)
    assert sorted(asked) == sorted(order)
    assert report["answers"] == len(order)
    latencies = report["latencies_ms"]
    assert isinstance(latencies, list)
    assert len(latencies) == len(order)
    assert min(latencies) > 0
    assert report["callers"] == 4


def test_a_batch_is_the_oldest_and_what_waits_nearest_to_its_length() -> None:
    lengths = [10, 90, 12, 80, 11]
    runs: list[list[int]] = []

    def answer(texts: Sequence[int]) -> list[list[float]]:
        runs.append(list(texts))
        return [[] for _ in texts]

    run(answer, range(5), 5, Setting(1, batch=3), lengths)
    assert runs == [[0, 4, 2], [1, 3]]
    runs.clear()
    run(answer, range(5), 2, Setting(1, batch=3), lengths)  # no more than ask at a time
    assert runs == [[0, 1], [2, 3], [4]]


def test_a_failing_run_fails_the_slice() -> None:
    def answer(texts: Sequence[int]) -> list[list[float]]:
        raise RuntimeError(f"no answer to {len(texts)} texts")

    with pytest.raises(RuntimeError, match="no answer to 1 texts"):
        run(answer, [0] * 8, 8, Setting(1, runs=4), [1])


class Echo:
    """A library whose vector of a text is its index."""

    def about(self) -> dict[str, str]:
        return {"echo": "1"}

    def lengths(self) -> list[int]:
        return [1, 2, 3]

    def prepare(self, setting: Setting) -> "Echo":
        assert setting == Setting(2, True, 1, 1)
        return self

    def __call__(self, texts: Sequence[int]) -> list[list[float]]:
        return [[float(text)] for text in texts]


def test_a_library_is_served_line_by_line() -> None:
    setting = {"threads": 2, "spin": True, "runs": 1, "batch": 1}
    requests: list[dict[str, object]] = [
        {"order": [2, 0], "setting": setting, "vectors": True},
        {"order": [1, 1, 1], "setting": setting, "callers": 2, "seconds": 0},
    ]
    out = io.StringIO()
    serve(Echo(), [json.dumps(request) for request in requests], out)
    hello, vectors, report = (json.loads(line) for line in out.getvalue().splitlines())
    assert hello == {"about": {"echo": "1"}}
    assert vectors == {"vectors": [[2.0], [0.0]]}
    assert report["answers"] == 3


def test_by_hand_is_what_the_library_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import contenders

    folder = GOLDEN / "bert-embed-mean"
    tokenizer = read_tokenizer(folder)
    texts = [make_text(tokenizer, tokens) for tokens in (3, 17, 60)]
    file = tmp_path / "texts.json"
    file.write_text(json.dumps([{"text": text.text, "tokens": text.tokens} for text in texts]))
    monkeypatch.setattr(contenders, "BUILD", tmp_path)
    kind = next(kind for kind in KINDS if kind.name == RAW)
    contender = contenders.start(kind, contenders.Places(folder, file, None))
    try:
        vectors = contender.worker.vectors([2, 0, 1], Setting(1))
        report = contender.worker.run([0, 1, 2] * 4, 4, Setting(1, runs=2, batch=2))
    finally:
        contender.worker.close()
    registry = Registry()
    handle = registry.load(str(folder))
    expected = registry.embed(handle, [texts[place].text for place in (2, 0, 1)]).values
    registry.cleanup(10_000)
    np.testing.assert_allclose(np.array(vectors), expected.reshape(3, -1), rtol=0, atol=1e-5)
    assert len(report.latencies) == 12
    assert report.seconds > 0


# ---- Comparison -------------------------------------------------------------


class Slow(Worker):
    """A worker that takes as many milliseconds as it is told for each setting."""

    def __init__(self, milliseconds: dict[Setting, float]) -> None:
        self._milliseconds = milliseconds
        self.asked: list[tuple[tuple[int, ...], int, Setting, float]] = []
        self.starts = 0
        self.closed = False

    def start(self) -> None:
        self.starts += 1
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def run(
        self, order: Sequence[int], callers: int, setting: Setting, seconds: float = 0
    ) -> Report:
        self.asked.append((tuple(order), callers, setting, seconds))
        each = self._milliseconds[setting]
        return Report((each,) * len(order), 0, each * len(order) / 1e3, each / 1e3)


def kind_of(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


def test_a_sweep_takes_the_best_setting() -> None:
    tried = settings_to_try(kind_of(RAW), 32, 2)
    assert tried == (
        Setting(1, False, 2, 1),
        Setting(1, False, 2, 4),
        Setting(1, False, 2, 16),
        Setting(2, False, 1, 1),
        Setting(2, False, 1, 4),
        Setting(2, False, 1, 16),
        Setting(2, False, 2, 1),
        Setting(2, True, 1, 1),
    )
    assert len(settings_to_try(kind_of(RAW), 32, 2, (1,))) == 4
    assert settings_to_try(kind_of(RAW), 1, 2) == (Setting(1), Setting(2), Setting(2, True))
    assert settings_to_try(kind_of(TORCH), 1, 2) == (Setting(1), Setting(2))
    assert settings_to_try(kind_of(RAW), 1, 1) == (Setting(1), Setting(1, True))
    best = tried[4]
    worker = Slow({setting: 5.0 - (setting == best) for setting in tried})
    contender = Contender(RAW, kind_of(RAW), worker)
    sweep([contender], [Workload("crowd", (1, 2, 3), 32)], 2, 2, BATCHES, lambda _: None)
    assert contender.best == {"crowd": best}
    assert label(best) == "2 threads, batches of 4"
    assert label(Setting(1, True, 2)) == "1 thread, spinning × 2 runs"


def test_all_answer_in_turn_and_go_first_in_turn_and_start_anew_for_each_round() -> None:
    calls: list[str] = []
    warm: set[tuple[str, int, tuple[int, ...]]] = set()

    class Named(Slow):
        def run(
            self, order: Sequence[int], callers: int, setting: Setting, seconds: float = 0
        ) -> Report:
            assert not self.closed
            name = next(iter(self._milliseconds)).threads * "x"
            if len(order) > 2:
                calls.append(name)
            elif len(order) == 2:
                warm.add((name, self.starts, tuple(order)))
            return Slow.run(self, order, callers, setting, seconds)

    contenders = []
    for threads in (1, 2, 3):
        worker = Named({Setting(threads): 1.0})
        best = {"w": Setting(threads)}
        contenders.append(Contender("x" * threads, kind_of(RAW), worker, best))
    results = Results()
    measure(contenders, [Workload("w", (0, 1, 0), 1)], 3, results, lambda _: None)
    assert warm == {(name, starts, (0, 1)) for name in ("x", "xx", "xxx") for starts in (1, 2, 3)}
    assert calls == ["x", "xx", "xxx", "xx", "xxx", "x", "xxx", "x", "xx"]
    assert [len(results.reports[name, "w"]) for name in ("x", "xx", "xxx")] == [3, 3, 3]


def results_of(pairs: dict[tuple[str, str], list[float]]) -> Results:
    results = Results()
    for (contender, workload), latencies in pairs.items():
        for latency in latencies:
            results.add(contender, workload, Report((latency,) * 4, 0, latency / 250, 0.002))
    return results


def test_ratios_are_formed_within_a_round() -> None:
    """A machine that slows down between rounds does not change them."""
    results = results_of({("a", "w"): [1.0, 10.0, 100.0], ("b", "w"): [2.0, 40.0, 200.0]})
    assert results.latency_ratio("a", "b", "w") == pytest.approx(0.5)
    assert results.throughput_ratio("a", "b", "w") == pytest.approx(2.0)
    assert results.latency("a", "w", 50) == 10.0
    assert results.per_second("a", "w") == pytest.approx(12 / 0.444)
    assert results.cpu_milliseconds("a", "w") == pytest.approx(0.5)
    assert results.latency_ratio("a", "c", "w") is None


def test_agreement_is_the_smallest_cosine() -> None:
    assert agreement([[1, 0], [0, 1]], [[1, 0], [0.6, 0.8]]) == pytest.approx(0.8)


def verdicts(facts: Facts) -> dict[str, str]:
    return {target.what: target.verdict for target in targets_of(facts)}


def test_only_what_was_measured_is_met() -> None:
    measured = {
        (OURS, fixed(32)): [1.0],
        (RAW, fixed(32)): [0.96],
        (OURS, fixed(8)): [1.0],
        (RAW, fixed(8)): [0.9],
        (TORCH, fixed(32)): [1.6],
        (OURS, mixed(8)): [1.0],
        (RAW, mixed(8)): [0.94],
    }
    absent = dict.fromkeys(("libsemantic int8", "libsemantic bf16"), "not installed")
    said = verdicts(Facts(results_of(measured), 2, False, absent, {}, 99.0))
    assert said["a call besides tokenising and running, median µs"] == "yes"
    assert said["32 tokens against tokenise + raw run"] == "yes"
    assert said["8 tokens against tokenise + raw run"] == "no"
    assert said["128 tokens against tokenise + raw run"] == "not measured"
    assert said["32 tokens against torch"] == "no"
    assert said["mixed lengths, 8 callers, against the best raw setting, throughput"] == "no"
    assert said["32 tokens, int8 against fp32, one thread"] == "not available"
    bf16 = [verdict for what, verdict in said.items() if "bf16" in what]
    assert bf16 == ["not applicable: no AMX"] * 9
    said = verdicts(Facts(results_of(measured), 2, True, absent, {}))
    assert {verdict for what, verdict in said.items() if "bf16" in what} == {"not available"}


def test_a_busy_machine_casts_doubt_on_verdicts() -> None:
    report = model_report()
    report.targets = [Target("speed", 1.0, False, 0.5), Target("other", 1.0, False, None)]
    assert " yes |" in targets_table([(report.model, report.targets)], quiet=True)
    doubtful = targets_table([(report.model, report.targets)], quiet=False)
    assert "yes? (busy)" in doubtful
    assert "not measured" in doubtful


def test_bf16_is_judged_where_there_is_amx() -> None:
    bf16 = "libsemantic bf16"
    results = results_of(
        {
            (one_thread(bf16), fixed(32)): [0.41],
            (one_thread(OURS), fixed(32)): [1.0],
            (bf16, fixed(32, 32)): [1.0],
            (OURS, fixed(32, 32)): [2.3],
        }
    )
    for amx, expected in ((True, ["no", "yes", "yes"]), (False, ["not applicable: no AMX"] * 3)):
        said = verdicts(Facts(results, 2, amx, {}, {bf16: 0.9995}))
        assert [
            said["32 tokens, bf16 against fp32, one thread"],
            said["32 tokens, 32 callers, bf16 against fp32, throughput"],
            said["cosine of bf16 to fp32"],
        ] == expected


# ---- What is printed --------------------------------------------------------


def model_report() -> ModelReport:
    worker = Slow({})
    raw = Contender(RAW, kind_of(RAW), worker, {mixed(1): Setting(2, True)})
    report = ModelReport("Tiny", [Contender(OURS, kind_of(OURS), worker), raw], (1, 8))
    pairs = {(OURS, mixed(1)): [2.0], (RAW, mixed(1)): [4.0], (OURS, mixed(8)): [123.4]}
    for tokens in FIXED:
        pairs |= {(name, fixed(tokens)): [tokens / 8.0] for name in (OURS, SAME)}
        pairs[RAW, fixed(tokens)] = [tokens / 16.0]
    report.results = results_of(pairs)
    report.absent = {TORCH: "not installed"}
    return report


def test_tables_show_what_was_measured() -> None:
    lines = mixed_table(model_report()).splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[0][:3] == ["mixed lengths, 3 to 400 tokens", "p50 ms (1)", "p99 ms (1)"]
    assert cells[2] == [OURS, "2.00", "2.00", "500", "123", "123", "8.10"]
    assert cells[3] == [RAW, "4.00", "4.00", "250", "–", "–", "–"]
    assert cells[4] == [TORCH, *["n/a"] * 6]
    assert len({len(line) for line in lines}) == 1
    lines = fixed_table(model_report()).splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[2] == [OURS, "1.00", "4.00", "16.0", "64.0"]
    assert cells[5] == [f"{OURS} ÷ {RAW}", *["2.00"] * 4]
    assert cells[6] == [f"{OURS} ÷ {SAME}", *["1.00"] * 4]
    assert cells[7] == [f"{OURS} ÷ {SAME}, CPU time", *["1.00"] * 4]
    assert settings_lines(model_report()) == [f"- {RAW}: mixed, 1 caller: 2 threads, spinning"]


def load_report() -> LoadReport:
    """Two rounds of each load; the second is ten times as slow."""
    load = LoadReport("Tiny", 2)
    # Milliseconds of each answer, and answers per second.
    for name, workload, latencies, speed in (
        (ONE_MODEL, mixed(1), (8.0, 12.0), 100),
        (ONE_MODEL, mixed(32), (100.0, 640.0), 125),
        (ONE_MODEL, LOAD_SHORT, (50.0, 50.0), 600),
        (NO_BATCHES, LOAD_SHORT, (90.0, 90.0), 390),
    ):
        for slow in (1, 10):
            took = tuple(slow * each for each in latencies)
            seconds = slow * len(took) / speed
            load.results.add(
                name, workload, Report(took, 0, seconds, 1.5 * seconds, "", 4e-5 * slow)
            )
    load.shares[ONE_MODEL, mixed(32)] = 0.034
    return load


def test_what_load_took_is_shown_and_judged() -> None:
    load = load_report()
    lines = load_table(load).splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[0][4:] == ["queued ms", "errors", "CPUs busy", "lock held"]
    # Four answers in 0.22 s, which were in the queue for 440 µs.
    alone = ["18.2", "12.0", "120", "0.11", "0", "1.50", "–"]
    assert cells[2] == ["one model, mixed, 1 caller", *alone]
    assert cells[3][-1] == "3.4 %"
    words = "mixed lengths, 32 callers, "
    expected = {
        f"{words}against one call at a time, throughput": (1.25, "yes"),
        # 10 ms × 32 callers / 2 CPUs
        f"{words}p99 against mean of one caller × callers / CPUs": (4, "yes"),
        f"{LOAD_SHORT}, against no batches, throughput": (600 / 390, "yes"),
        "mixed lengths, 1 caller, time in the queue, mean µs": (110, "no"),
    }
    for target, (what, (measured, verdict)) in zip(load.targets, expected.items(), strict=True):
        assert (target.what, target.verdict) == (what, verdict)
        assert target.measured == pytest.approx(measured)


def test_of_load_only_what_was_measured_without_errors_is_met() -> None:
    assert {target.verdict for target in load_targets(Results(), 2)} == {"not measured"}
    load = load_report()
    for reports in load.results.reports.values():
        reports[0] = replace(reports[0], queue_seconds=None)
    assert load.targets[3].verdict == "not measured"
    load = load_report()
    for reports in load.results.reports.values():
        reports[0] = replace(reports[0], errors=1)
    assert [target.verdict for target in load.targets] == ["calls failed"] * 4


def test_a_table_is_markdown() -> None:
    assert table(["a", "bb"], [["ccc", "1"]]) == "| a   | bb |\n| --- | -: |\n| ccc |  1 |"
    assert [number(value) for value in (None, 123.4, 12.34, 1.234)] == ["–", "123", "12.3", "1.23"]


def test_what_stands_between_marks_is_replaced() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb"
    assert between(page, "x", " new\n") == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb"
    with pytest.raises(ValueError, match="begin y"):
        between(page, "y", "")
    machine = Machine("Some CPU", 2, 8, {"AMX": False}, "6.1", {"torch": "2"}, 0.05, "1 May 2026")
    load = load_report()
    short = summary(machine, "bench/peers.py", [model_report()], load)
    assert short.startswith("`bench/peers.py` on\n\n- Some CPU, 2 CPUs, 8 GB; AMX no\n- torch 2; ")
    assert BUSY not in short
    assert BUSY in summary(replace(machine, busy=0.5), "bench/peers.py", [model_report()], load)
    page = write_report(machine, "bench/peers.py", [model_report()], load)
    for part in (fixed_table(model_report()), load_table(load), "**Tiny under load**"):
        assert part in short
        assert part in page
    assert "| Tiny under load: " in page
    nothing = LoadReport("Tiny", 2)
    assert "**Tiny under load**" not in summary(machine, "", [model_report()], nothing)
    assert page.count("not measured") == 0
    assert write_report(machine, "", [model_report()], nothing).count("not measured") == 4
    for file in ("README.md", "docs/performance.md"):
        assert short in between((ROOT / file).read_text(), "measured", short)


def test_the_plot_draws_each_value() -> None:
    panel = Panel("speed <&>", ["1", "8"], [[1.0, 2.0], [None, 4.0]])
    tail = Panel("p99", ["1", "8"], [[1.0, 2.0], [None, 4.0]], [[3.0, 30.0], [None, 5.0]], True)
    picture = draw("title", ["ours", "theirs"], [[panel, tail]])
    root = ElementTree.fromstring(picture)
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("x")]
    heights = [float(each.get("height", "")) for each in bars[2:]]  # after the legend
    assert len(heights) == 6
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.1)
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.1)
    assert peers.write_plot([model_report()]).count("<rect") > 4


def test_the_machine_is_described() -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t: fpu avx512f amx_tile\nprocessor\t: 1\n"
    cpu, features = read_cpu(text)
    assert cpu == "Some CPU"
    assert [name for name, there in features.items() if there] == ["AVX-512", "AMX"]
    before = "cpu  100 0 100 600 100 0 0 0 7 7\ncpu0 1\n"
    after = "cpu  150 0 150 650 150 0 50 50 9 9\ncpu0 1\n"
    assert read_busy(before, after) == pytest.approx(2 / 3)
    words = " ".join(describe({"torch": "2"}).lines())
    assert "torch 2" in words
    assert "AMX " in words


def test_the_share_of_the_lock_is_of_all_looks() -> None:
    stacks = "a (x.py:1);b (y.py:2) 30\nc d (z.py:3) 12\n"
    assert held_share(stacks, 200) == pytest.approx(0.21)
    assert held_share("", 200) == 0


def test_the_command_line() -> None:
    options = peers.parse(["--quick", "--rounds", "2", "--no-load"])
    assert (options.quick, options.rounds, options.load) == (True, 2, False)
    assert peers.parse([]).models == ["minilm", "modernbert"]
    for wrong in (["--rounds", "-1"], ["--publish", "--no-load"]):
        with pytest.raises(SystemExit):
            peers.parse(wrong)
