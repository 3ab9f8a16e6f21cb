"""Threads that begin together."""

import threading
from collections.abc import Callable


class Crowd:
    """Threads that run a function with their number; what any of them raises fails the test."""

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        self.errors: list[BaseException] = []
        self._work = work
        self._start = threading.Barrier(count)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        try:
            self._start.wait(10)
            self._work(number)
        except BaseException as error:
            self.errors.append(error)

    @property
    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(30)
        assert not self.alive, "some threads hang"
        if self.errors:
            raise self.errors[0]
