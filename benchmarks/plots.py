"""Pictures, as SVG written by hand: lines over logarithmic axes, which is all there is to show."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Points = Sequence[Sequence[float]]

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 40, 50
_COLOURS: Final = ("#0b6e4f", "#c1440e", "#2b59c3", "#8a6d00", "#7a2e8e", "#555555")


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis, from one power of ten to another."""

    label: str
    low: int
    high: int
    start: float  # pixels
    end: float

    @classmethod
    def around(cls, label: str, values: Iterable[float], start: float, end: float) -> "Axis":
        """The axis that holds some values."""
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        low = math.floor(min(logs) + 1e-9)
        return cls(label, low, max(low + 1, math.ceil(max(logs) - 1e-9)), start, end)

    def at(self, value: float) -> float:
        """Where a value lies."""
        share = (math.log10(max(value, 10.0**self.low)) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """The powers of ten on it."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def plot(title: str, x_label: str, y_label: str, lines: dict[str, Points]) -> str:
    """A picture of some lines, each a list of points."""
    points = [point for line in lines.values() for point in line]
    x = Axis.around(x_label, (one[0] for one in points), _LEFT, _WIDTH - _RIGHT)
    y = Axis.around(y_label, (one[1] for one in points), _HEIGHT - _BOTTOM, _TOP)
    body = [*_frame(title, x, y)]
    for number, (name, line) in enumerate(lines.items()):
        colour, dash = (
            _COLOURS[number % len(_COLOURS)],
            ' stroke-dasharray="6 4"' if number >= len(lines) / 2 and len(lines) > 4 else "",
        )
        path = " ".join(f"{x.at(one[0]):.1f},{y.at(one[1]):.1f}" for one in line)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if len(line) <= 10:
            body += [
                f'<circle cx="{x.at(one[0]):.1f}" cy="{y.at(one[1]):.1f}" r="3" fill="{colour}"/>'
                for one in line
            ]
        place = _TOP + 14 + 20 * number
        body.append(
            f'<line x1="{_WIDTH - _RIGHT + 14}" y1="{place}" x2="{_WIDTH - _RIGHT + 38}" y2="{place}" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        body.append(f'<text x="{_WIDTH - _RIGHT + 44}" y="{place + 4}">{escape(name)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>', *body, "</svg>\n",
    ])  # fmt: skip


def _frame(title: str, x: Axis, y: Axis) -> Iterable[str]:
    yield f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>'
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<line x1="{at:.1f}" y1="{y.end}" x2="{at:.1f}" y2="{y.start}" stroke="#dddddd"/>'
        yield f'<text x="{at:.1f}" y="{y.start + 18}" text-anchor="middle">{tick:,.10g}</text>'
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<line x1="{x.start}" y1="{at:.1f}" x2="{x.end}" y2="{at:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{x.start - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:,.10g}</text>'
    yield f'<text x="{(x.start + x.end) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x.label)}</text>'
    yield (
        f'<text x="16" y="{(y.start + y.end) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(y.start + y.end) / 2})">{escape(y.label)}</text>'
    )


def slower_than(histogram: Points) -> list[list[float]]:
    """A latency histogram (bound, requests) as the share of requests that take longer, in percent."""
    total = sum(count for _, count in histogram)
    found, left = [], total
    for bound, count in histogram:
        left -= count
        found.append([bound, max(left / total * 100, 0.01)])
    return found
