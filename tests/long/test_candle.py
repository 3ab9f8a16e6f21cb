"""Memory of candle's functions: many calls of each verb, and a memory checker over all of them."""

import random
import shutil
from pathlib import Path

import pytest

from ..abi.binding import ROOT
from ..abi.candle import (
    FUNCTIONS,
    INITS,
    SLOT_OF_INIT,
    UNSUPPORTED,
    Raw,
    compile_driver,
    good_arguments,
    in_a_process,
    line,
)
from .candle_soak import FAILING, VERBS, check, grown
from .memory_checker import checked_by, own_faults
from .size import sized

OWN_SOURCES = {"_libsemantic.c", "candle_driver.c", "candle_entry.c"} | {
    path.name for path in (ROOT / "ffi").rglob("*.[ch]")
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("candle") / "candle_driver")


@pytest.mark.parametrize("name", VERBS)
def test_many_calls_keep_no_memory(driver: Path, name: str) -> None:
    check(name, *grown(driver, VERBS[name], sized(2000, least=1000)))


# Enough of them that every kind of answer is given.
LOADED = (
    *("init_similarity_model", "init_classifier", "init_jailbreak_classifier"),
    *("init_modernbert_classifier", "init_candle_bert_token_classifier"),
    *("init_modernbert_pii_token_classifier", "init_mmbert_32k_pii_classifier"),
    *("init_hallucination_model", "init_nli_model", "init_lora_unified_classifier"),
    *("init_unified_classifier_c", "init_embedding_models_with_mmbert"),
    "init_embedding_models_batched",
)


def test_every_function_under_valgrind(driver: Path, tmp_path: Path) -> None:
    """Good calls and failing ones; the one answer that is lost on purpose is all that is found."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (Debian: apt-get install valgrind)")
    report = tmp_path / "report.xml"
    readers = sorted(set(FUNCTIONS) - set(INITS) - {"safe_free", "candle_mlp_free"})
    lost = "classify_modernbert_text_with_probabilities"
    said = in_a_process(
        driver,
        line("candle_mlp_from_json", *good_arguments("candle_mlp_from_json")),
        *(line(name, *good_arguments(name)) for name in LOADED),
        *(line(name, *good_arguments(name)) for name in readers),
        *(verb.call for verb in FAILING.values()),
        line("candle_mlp_free", Raw("h0")),
        "cleanup_dual_path_memory",
        # Often, since a copy of the latest pointer may lie on a stack somewhere.
        *("stats", "hold", f"repeat 50 {line(lost, 'math')}", "lose", "cleanup 60000"),
        seconds=1800,
        under=checked_by(report),
    )
    assert said.answers[1 : len(LOADED) + 1] == [True] * len(LOADED)
    failed = [
        name
        for name, answer in zip(readers, said.answers[len(LOADED) + 1 :], strict=False)
        if isinstance(answer, dict) and answer.get("status") == -1 and name not in UNSUPPORTED
    ]
    assert failed == []
    assert said.answers[-1] == "OK"
    found = set()
    for kind, frames in own_faults(report, OWN_SOURCES):
        functions = [frame.findtext("fn", "") for frame in frames]
        call = next((name for name in functions if name.startswith("call_")), functions[0])
        found.add((kind, call))
    assert found == {("Leak_DefinitelyLost", f"call_{lost}")}


LOOSE = ("classifier", "nli", "qwen3", "hallucination", "lora-pii", "mmbert-32k-intent")
NOT_AT_ONCE = ("free_", "safe_", "candle_mlp_", "cleanup_dual_path_memory")


@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once(driver: Path, seed: int) -> None:
    """Inits, calls, unloading and cleaning up from many threads: no crash, no fault, no loss."""
    chosen = random.Random(seed)
    names = [name for name in FUNCTIONS if not name.startswith(NOT_AT_ONCE)]
    lines: list[str] = []
    for _ in range(sized(40, least=10)):
        together = [line(name, *good_arguments(name)) for name in chosen.choices(names, k=24)]
        together += chosen.choices(["cleanup 3000", "stats"], k=1)
        together.append(line("unload", f"candle/{chosen.choice(LOOSE)}"))
        lines += [*(f"& {each}" for each in together), "wait"]
    said = in_a_process(driver, *lines, "cleanup 20000", "stats", seconds=600)
    cleaned, stats = said.answers[-2:]
    assert cleaned == "OK"
    assert (stats["models"], stats["unfreed"]) == ([], 0)
    assert "internal fault" not in said.errors
    assert "outside its guard" not in said.errors


def test_the_loaded_ones_are_inits() -> None:
    assert set(LOADED) <= set(INITS)
    assert set(SLOT_OF_INIT) <= set(INITS)
