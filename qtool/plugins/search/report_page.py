"""HTML page of a mixed-precision search: Pareto front, precision of each layer, evaluated files."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from qtool.evaluation.report.page.figures import INK, SERIES, Drawing, draw_svg, escape_math
from qtool.evaluation.report.page.render import environment
from qtool.plugins.search.tune_result import TuneResult


def tune_page(result: TuneResult, title: str) -> bytes:
    """Return the page as self-contained HTML."""
    front = _front_figure(result)
    template = environment().get_template("tune.html")
    return template.render(result=result, title=title, front=front).encode()


LEAST = 3  # files of a plot


def _front_figure(result: TuneResult) -> Drawing | None:
    """Plot all evaluated files, SQNR over cost, with the Pareto front as a line; None of few."""
    smallest = result.goals.smallest
    files = [e for e in result.evaluated if e.score.sqnr_db is not None]
    if len(files) < LEAST:
        return None
    cost = {e.key: e.size / 1024 if smallest else e.speedup for e in files}
    front = [e for key in result.front for e in files if e.key == key]

    def draw(axes: Axes) -> None:
        axes.plot(
            [cost[e.key] for e in front],
            [e.score.sqnr_db or 0.0 for e in front],
            color=SERIES[1],
            linewidth=1.4,
        )
        for number, e in enumerate(result.evaluated, 1):
            if e.key not in cost:
                continue
            best = e.key == result.best.key
            color = SERIES[3] if result.goals.is_met(e) else SERIES[0]
            axes.plot([cost[e.key]], [e.score.sqnr_db or 0.0], "o", color=color, markersize=6)
            axes.annotate(
                escape_math(f"{number} (best)" if best else str(number)),
                (cost[e.key], e.score.sqnr_db or 0.0),
                xytext=(6, 5),
                textcoords="offset points",
                color=INK,
                fontsize=8,
                fontweight="bold" if best else "normal",
            )
        if result.goals.min_sqnr is not None:
            axes.axhline(result.goals.min_sqnr, color=SERIES[2], linewidth=1, linestyle="--")
        axes.margins(0.12)
        axes.set_xlabel("size in KiB" if smallest else "speed-up over the float model")
        axes.set_ylabel("output SQNR in dB")

    low, high = (f(e.score.sqnr_db or 0.0 for e in files) for f in (min, max))
    return draw_svg("Evaluated files", 3.4 if np.ptp([low, high]) else 2.6, draw)
