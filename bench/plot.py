"""Draw a benchmark as SVG: bars of throughput and latency by callers, one row per model."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

# Told apart by those who do not see all colours (Okabe and Ito's palette).
_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999999")
_WIDTH, _HEIGHT = 460, 210  # of a panel's bars
_LEFT, _TOP, _GAP = 60, 40, 80
_FONT = 'font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars in groups: ``values`` by series and group; None is not measured.

    ``tips`` are higher values marked above the bars, such as p99 above p50.
    """

    title: str
    groups: Sequence[str]
    values: Sequence[Sequence[float | None]]
    tips: Sequence[Sequence[float | None]] = ()
    logarithmic: bool = False


def draw(title: str, series: Sequence[str], rows: Sequence[Sequence[Panel]]) -> str:
    """Return the picture with a legend of the series and the panels in rows."""
    columns = max(len(row) for row in rows)
    width = columns * (_LEFT + _WIDTH + 30)
    top = 60 + 18 * ceil(len(series) / 4)
    height = top + len(rows) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_FONT}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for place, name in enumerate(series):
        x, y = _LEFT + 230 * (place % 4), 42 + 18 * (place // 4)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{_colour(place)}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}">{escape(name)}</text>')
    for line, row in enumerate(rows):
        for column, panel in enumerate(row):
            x = column * (_LEFT + _WIDTH + 30) + _LEFT
            parts += _panel(panel, x, top + line * (_HEIGHT + _GAP) + _TOP)
    return "\n".join((*parts, "</svg>\n"))


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    known = [value for rows in (panel.values, panel.tips) for row in rows for value in row if value]
    highest, lowest = max(known, default=1.0), min(known, default=1.0)
    if panel.logarithmic:
        first, last = floor(log10(lowest)), max(ceil(log10(highest)), floor(log10(lowest)) + 1)
        marks = [10.0**power for power in range(first, last + 1)]
    else:
        step = _step(highest)
        marks = [step * index for index in range(ceil(highest / step) + 1)]

    def place(value: float) -> float:
        share = value / marks[-1]
        if panel.logarithmic:
            share = log10(value / marks[0]) / log10(marks[-1] / marks[0])
        return top + _HEIGHT * (1 - share)

    parts = [f'<text x="{left}" y="{top - 10}" font-size="12">{escape(panel.title)}</text>']
    for mark in marks:
        y = place(mark)
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>')
    group_width = _WIDTH / len(panel.groups)
    bar = 0.86 * group_width / len(panel.values)
    for group, name in enumerate(panel.groups):
        begin = left + group * group_width + 0.07 * group_width
        middle = left + (group + 0.5) * group_width
        y = top + _HEIGHT + 16
        parts.append(f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{escape(name)}</text>')
        for series, row in enumerate(panel.values):
            value = row[group]
            if value is None:
                continue
            x, y = begin + series * bar, place(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.9 * bar:.1f}" '
                f'height="{top + _HEIGHT - y:.1f}" fill="{_colour(series)}"/>'
            )
            tip = panel.tips[series][group] if panel.tips else None
            if tip is not None:
                end = place(tip)
                parts.append(
                    f'<path d="M{x + 0.45 * bar:.1f} {y:.1f}V{end:.1f}m{-0.25 * bar:.1f} 0'
                    f'h{0.5 * bar:.1f}" stroke="{_colour(series)}" fill="none" stroke-width="1.5"/>'
                )
    return parts


def _step(highest: float) -> float:
    """Return a round step that cuts the height in about five."""
    power: float = 10.0 ** floor(log10(highest / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= highest)
