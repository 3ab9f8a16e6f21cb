"""Call each of candle's verbs very often: python -m tests.long.candle_soak [--calls N] [VERB ...].

For each verb a process of its own, in C, that loads what is needed and calls N times. The
resident memory after the last tenth of the calls may be above that after the second tenth by 1 %
or 4 MB, whichever is more; nothing may be left unfreed, and the last call of each tenth answers
what the very first one did. Calls that fail are verbs of their own.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..abi.binding import MODELS
from ..abi.candle import (
    INVALID,
    MLP,
    OUT,
    SLOT_OF_INIT,
    TEXT,
    Answer,
    Raw,
    compile_driver,
    doubles,
    good_arguments,
    in_a_process,
    line,
)

MEGABYTE = 1 << 20
LATEST = Raw("p")
NEXT = " ; "


@dataclass(frozen=True, slots=True)
class Verb:
    """What is loaded first, and what is called again and again."""

    before: tuple[str, ...]
    call: str


def asked(init: str, *readers: str) -> Mapping[str, Verb]:
    before = (line(init, *good_arguments(init)),)
    return {name: Verb(before, line(name, *good_arguments(name))) for name in readers}


def slot(init: str) -> Mapping[str, Verb]:
    return asked(init, *SLOT_OF_INIT[init].readers)


MMBERT = "init_embedding_models_with_mmbert"
CLASSIFIER = line("init_classifier", *good_arguments("init_classifier"))

WORKING: Mapping[str, Verb] = {
    **slot("init_similarity_model"),
    **slot("init_classifier"),
    **slot("init_jailbreak_classifier"),
    **slot("init_modernbert_classifier"),
    **slot("init_candle_bert_token_classifier"),
    **slot("init_modernbert_pii_token_classifier"),
    **slot("init_mmbert_32k_pii_classifier"),
    **slot("init_hallucination_model"),
    **slot("init_nli_model"),
    **asked("init_lora_unified_classifier", "classify_batch_with_lora"),
    **asked("init_unified_classifier_c", "classify_unified_batch"),
    **asked(
        MMBERT,
        *("get_embedding_smart", "get_embedding_with_dim", "get_embedding_with_model_type"),
        *("get_embedding_2d_matryoshka", "calculate_embedding_similarity"),
        *("calculate_similarity_batch", "get_embedding_models_info"),
    ),
    **asked("init_embedding_models_batched", "get_embedding_batched"),
    "init of the same path": Verb((CLASSIFIER,), CLASSIFIER),
    "is_similarity_model_initialized": Verb((), "is_similarity_model_initialized"),
    "is_mmbert_model": Verb((), line("is_mmbert_model", *good_arguments("is_mmbert_model"))),
    "candle_mlp_from_json": Verb(
        (), NEXT.join((line("candle_mlp_from_json", MLP), line("candle_mlp_free", LATEST)))
    ),
    "candle_mlp_select": Verb(
        (line("candle_mlp_from_json", MLP),),
        line("candle_mlp_select", Raw("h0"), doubles([1, 0, 0]), 3),
    ),
    "candle_mlp_to_json": Verb(
        (line("candle_mlp_from_json", MLP),), line("candle_mlp_to_json", Raw("h0"))
    ),
    "validate_batch_input": Verb((), line("validate_batch_input", [TEXT, ""], 2, 0)),
    "safe_alloc_lora": Verb(
        (), NEXT.join((line("safe_alloc_lora", 64), line("safe_free", LATEST)))
    ),
}
FAILING: Mapping[str, Verb] = {
    "an empty slot": Verb((), line("classify_text", TEXT)),
    "NULL": Verb((CLASSIFIER,), line("classify_text", None)),
    "no UTF-8": Verb((CLASSIFIER,), line("classify_text", INVALID)),
    "another path": Verb((CLASSIFIER,), line("init_classifier", MODELS / "bert-token", 7, True)),
    "no folder": Verb((), line("init_nli_model", "/nowhere", True)),
    "no configuration": Verb(
        (line("init_modernbert_pii_token_classifier", MODELS / "modernbert-token", True),),
        line("classify_modernbert_pii_tokens", TEXT, "/nowhere"),
    ),
    "a message": Verb((), line("detect_hallucinations", TEXT, "", TEXT, 0.5)),
    "a batch without models": Verb((), line("classify_unified_batch", [TEXT], 1)),
    "an unknown model": Verb((), line("get_embedding_with_model_type", TEXT, "bert", 0, OUT)),
    "more dimensions than there are": Verb(
        (line("init_mmbert_embedding_model", MODELS / "mmbert-embed-mean", True),),
        line("get_embedding_2d_matryoshka", TEXT, "mmbert", 0, 65, OUT),
    ),
    "JSON that is none": Verb((), line("candle_mlp_from_json", "{")),
    "unsupported": Verb((), line("classify_with_qwen3_guard", TEXT, "input", OUT)),
}
VERBS: Mapping[str, Verb] = {
    **WORKING,
    **{f"fails: {name}": verb for name, verb in FAILING.items()},
}


def grown(driver: Path, verb: Verb, calls: int) -> tuple[int, int]:
    """Call so often; return the resident bytes after the second and after the last tenth."""
    tenth = (f"repeat {max(1, calls // 10)} {verb.call}", "resident")
    script = (*verb.before, f"repeat 1 {verb.call}", *tenth * 10, "stats")
    answers = in_a_process(driver, *script, seconds=60 + calls / 50).answers
    assert answers[: len(verb.before)] == [
        answer if isinstance(answer, str) else True for answer in answers[: len(verb.before)]
    ]
    stats = answers.pop()
    assert "selector" in verb.call or stats["unfreed"] == 0, stats
    first, *rest = answers[len(verb.before) :]
    resident = rest[1::2]
    assert len(resident) == 10
    assert all(_timeless(answer) == _timeless(first) for answer in rest[::2]), (first, rest)
    return resident[1], resident[9]


def _timeless(answer: Answer) -> Answer:
    """Return an answer without the time that it took."""
    if not isinstance(answer, dict):
        return answer
    return {
        name: _timeless(value) for name, value in answer.items() if name != "processing_time_ms"
    }


def check(name: str, second: int, last: int) -> None:
    """Raise if memory has grown beyond the bound."""
    if last > second + max(second * 0.01, 4 * MEGABYTE):
        raise MemoryError(f"{name}: {last} bytes are resident, after the second tenth {second}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000, help="of each verb, default 100,000")
    parser.add_argument("verbs", nargs="*", metavar="VERB", help="default: all")
    given = parser.parse_args()
    calls, verbs = given.calls, given.verbs or VERBS
    with tempfile.TemporaryDirectory() as folder:
        driver = compile_driver(Path(folder) / "candle_driver")
        for name in verbs:
            verb = VERBS[name]
            started = time.monotonic()
            second, last = grown(driver, verb, calls)
            print(
                f"{time.strftime('%H:%M:%S')} {name}: {calls} calls in "
                f"{time.monotonic() - started:.0f} s, {second / MEGABYTE:.1f} MB after the second "
                f"tenth, {last / MEGABYTE:.1f} MB after the last",
                flush=True,
            )
            check(name, second, last)


if __name__ == "__main__":
    main()
