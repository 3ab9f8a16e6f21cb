"""Calls every candle function while the registry raises: python -m tests.abi.candle_fault_host.

Arguments: the driver as a shared object, and the file for the report.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libsemantic.engine.registry import Registry

from .candle import INITS, UNSUPPORTED, Answer, Candle, good_arguments
from .test_candle_failures import NEED_A_MODEL, secret_arguments

FAULTS = (
    *(RuntimeError, KeyError, MemoryError, SystemExit, KeyboardInterrupt),
    *(RecursionError, UnicodeDecodeError),
)
SECRET = "Zanzibar7 is the user's text"
raised: type[BaseException] | None = None


def failing(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if raised is UnicodeDecodeError:
            raise UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET)
        if raised is not None:
            raise raised(SECRET)
        return method(*arguments, **named)

    return call


CALLS = ("classify", "classify_pairs", "classify_tokens", "classify_token_pairs", "embed")


def main(driver: str, report: str) -> None:
    """Load everything, break every method that calls a model or loads one, and ask."""
    global raised
    candle = Candle(Path(driver))
    # The ways into the engine that calls and loads take, however they are reached.
    for name in (*CALLS, "count_tokens", "load"):
        original = getattr(Registry, name)
        setattr(Registry, name, failing(original))
    readers = sorted(set(NEED_A_MODEL) - UNSUPPORTED - {"get_embedding_models_info"})
    report_of: dict[str, dict[str, Answer]] = {fault.__name__: {} for fault in FAULTS}
    for raised in FAULTS:
        for name in INITS:
            report_of[raised.__name__][name] = candle(name, *secret_arguments(name))
    raised = None
    for name in INITS:  # what failed can be repeated
        assert candle(name, *good_arguments(name)) is True, name
    for fault in FAULTS:
        raised, answers = fault, report_of[fault.__name__]
        for name in readers:
            answers[name] = candle(name, *secret_arguments(name))
        raised = None
        right = candle("classify_text", "What is the derivative of x squared?")
        answers["then"] = {
            "predicted_class": right["predicted_class"],
            "confidence": round(right["confidence"], 4),
        }
        answers["unfreed"] = candle.stats()["unfreed"]
    (cleaned,) = candle.script("cleanup 10000")
    assert cleaned == "OK", cleaned
    Path(report).write_text(json.dumps(report_of))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
