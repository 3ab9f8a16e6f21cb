"""A Python that ends while eight daemon threads are inside calls, and a fork of it before.

leaving_host.py [stuck] prints the code of the child, then when it leaves, and ends with code 7.
With "stuck" the calls do not end when they are cancelled.
"""

import os
import sys
import threading
import time
import warnings
from unittest import mock

from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY

from .binding import Library

# From 3.12 a fork with threads is warned of; to survive one is what is tested here.
warnings.filterwarnings("ignore", category=DeprecationWarning)

ROWS = 64


def call_for_ever(library: Library, model: int) -> None:
    arguments = library.good_arguments("semantic_classify", model, "")
    arguments |= {"texts": library.texts(*[b"math word " * 60] * ROWS), "n": ROWS}
    while True:
        status = library.call("semantic_classify", arguments)
        assert status in (Status.OK, Status.PARTIAL, Status.CANCELLED, Status.CLOSED)
        library.lib.semantic_free(arguments["result"][0])


def rows_in_flight(library: Library) -> int:
    stats = library.result_of(
        "semantic_get_stats", library.good_arguments("semantic_get_stats", 0, "")
    )
    return int(stats["in_flight"].sum())


def exit_code_of_a_child(library: Library, model: int) -> int:
    """Fork without exec: the child is refused, and ends by the usual way."""
    child = os.fork()
    if child == 0:
        refused = library.call(
            "semantic_classify", library.good_arguments("semantic_classify", model, "")
        )
        sys.exit(41 if refused == Status.INTERPRETER else 42)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(*, stuck: bool) -> None:
    """End with code 7 while eight calls are in flight."""
    asleep: list[object] = []

    def sleep(*arguments: object) -> None:
        asleep.append(arguments)
        time.sleep(60)

    if stuck:
        mock.patch.object(REGISTRY, "classify", sleep).start()
    library = Library()
    arguments = library.good_arguments("semantic_load_model", 0, "")
    assert library.call("semantic_load_model", arguments) == Status.OK
    model = arguments["model"].id
    print(exit_code_of_a_child(library, model), flush=True)
    for _ in range(8):
        threading.Thread(target=call_for_ever, args=(library, model), daemon=True).start()
    while len(asleep) != 8 if stuck else rows_in_flight(library) != 8 * ROWS:
        time.sleep(0.001)
    print(time.monotonic(), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main(stuck=sys.argv[1:] == ["stuck"])
