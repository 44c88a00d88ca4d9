"""A learning curve as an SVG inside the page: its colours follow the page, light or dark."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 10, 10, 34

Curve = Sequence[tuple[int, float]]
"""(round, value) pairs in order."""


def svg(curves: Mapping[str, Curve], label: str) -> str:
    """The curves over rounds, the first one in front.

    Args:
        curves: name -> curve; at most two.
        label: of the vertical axis, for example the metric's name.
    """
    rounds = max(round for curve in curves.values() for round, _ in curve)
    low, high = _limits([value for curve in curves.values() for _, value in curve])

    def place(round: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * round / rounds
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    body = [*_grid(low, high, rounds)]
    for index, curve in reversed(list(enumerate(curves.values()))):
        points = " ".join(place(*point) for point in curve)
        body.append(f'<polyline class="curve curve-{index}" points="{points}"/>')
        x, y = place(*curve[-1]).split(",")
        body.append(f'<circle class="end end-{index}" cx="{x}" cy="{y}" r="3"/>')
    names = "".join(
        f'<span class="key key-{index}">{escape(name)}</span>' for index, name in enumerate(curves)
    )
    return (
        f'<figure class="curves"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)} over rounds">{"".join(body)}</svg>'
        f"<figcaption>{names}</figcaption></figure>"
    )


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Tenths around the values, at least two tenths apart."""
    low = int(min(values) * 10) / 10
    high = -int(-max(values) * 10 - 0.999) / 10
    return (low, high) if high - low >= 0.2 else (max(high - 0.2, 0.0), max(high, 0.2))


def _grid(low: float, high: float, rounds: int) -> list[str]:
    lines = []
    steps = round((high - low) * 10)
    every = 2 if steps > 6 else 1
    for tenth in range(0, steps + 1, every):
        value = high - tenth / 10
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
    for tick in range(0, rounds + 1, max(rounds // 6, 1)):
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * tick / rounds
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{tick}</text>')
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 1}" text-anchor="end">round</text>')
    return lines
