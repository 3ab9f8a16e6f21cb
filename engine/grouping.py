"""Which windows share a run: where that saves more than the padding of the shorter ones costs."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Padding:
    """What is padded, measured on CPU; a row of ``providers.PROVIDERS`` may have other numbers.

    A window joins a run if it is at most ``spare_tokens`` shorter than the longest one, or one part
    in ``spare_share`` of that. Beyond ``longest`` tokens it joins only its equals: attention over a
    long padded row needs the memory of all its scores, or a loop over them, and never pays.
    """

    spare_tokens: int = 4
    spare_share: int = 8
    longest: int = 512

    def near(self, longest: int, shortest: int) -> bool:
        """Tell whether windows of these lengths may share a run."""
        if longest > self.longest:
            return longest == shortest
        return longest - shortest <= max(self.spare_tokens, longest // self.spare_share)


DEFAULT_PADDING = Padding()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one model's runs and queue; a long text counts once per window."""

    parallel_runs: int
    batch_rows: int
    batch_tokens: int
    queue_rows: int
    queue_tokens: int
    padding: Padding = DEFAULT_PADDING

    def fits(self, rows: int, longest: int, shortest: int) -> bool:
        """Tell whether several windows between these lengths may share a run."""
        return (
            rows <= self.batch_rows
            and longest * rows <= self.batch_tokens
            and self.padding.near(longest, shortest)
        )


def split(lengths: Sequence[int], limits: Limits) -> list[Sequence[int]]:
    """Split windows into runs; return the indices of each, the longest window first."""
    runs: list[Sequence[int]] = []
    members: list[int] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        if members and not limits.fits(len(members) + 1, longest, length):
            runs.append(members)
            members = []
        if not members:
            longest = length
        members.append(index)
    if members:
        runs.append(members)
    return runs
