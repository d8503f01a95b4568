"""Pictures of the results: lines over logarithmic axes, as SVG for pages and as PNG for everything else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

Points = Sequence[Sequence[float]]

_COLOURS: Final = ("#0b6e4f", "#c1440e", "#2b59c3", "#8a6d00", "#7a2e8e", "#555555")
_FEW: Final = 10  # points that are worth a mark each


def plot(file: Path, title: str, x_label: str, y_label: str, lines: dict[str, Points]) -> None:
    """Draw some lines, each a list of points: `file` and beside it the same as PNG."""
    import matplotlib as mpl  # only where something is drawn

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogFormatter

    # the same results give the same file, and text stays text
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
        for number, (name, line) in enumerate(lines.items()):
            dashed = number >= len(lines) / 2 and len(lines) > 4
            axes.plot(
                [point[0] for point in line],
                [point[1] for point in line],
                label=name,
                color=_COLOURS[number % len(_COLOURS)],
                linestyle="--" if dashed else "-",
                marker="o" if len(line) <= _FEW else "",
                markersize=4,
            )
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
        axes.set_title(title, loc="left", fontweight="bold")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.grid(color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(file, metadata={"Date": None})
        figure.savefig(file.with_suffix(".png"), dpi=120)
        plt.close(figure)


def slower_than(histogram: Points) -> list[list[float]]:
    """A latency histogram (bound, requests) as the share of requests that take longer, in percent."""
    total = sum(count for _, count in histogram)
    found, left = [], total
    for bound, count in histogram:
        left -= count
        found.append([bound, max(left / total * 100, 0.01)])
    return found
