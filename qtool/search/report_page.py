"""The page of a search: the front, what each layer got and why, and what was tried."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from qtool.evaluation.report.page.figures import INK, SERIES, draw_svg, escape_math
from qtool.evaluation.report.page.render import environment
from qtool.search.judge import Score
from qtool.search.tune_result import TuneResult


def tune_page(found: TuneResult, title: str) -> bytes:
    """The page as HTML, whole in itself."""
    front = Markup(_front_figure(found))  # noqa: S704  # drawn here, names escaped by the library
    template = environment().get_template("tuned.html")
    metric = _metric(found.best.score)
    return template.render(found=found, title=title, front=front, metric=metric).encode()


def _metric(score: Score) -> dict[str, str]:
    """The metric of the best file, and what it is beside: float, and what the data leaves open."""
    if score.value is None or score.reference is None:
        return {}
    unit, mark = (100.0, " %") if score.percent else (1.0, "")
    beside = f"float {unit * score.reference:.4g}{mark}"
    if score.low is not None and score.high is not None:
        ends = (f"{0.0 - unit * end:+.3g}" for end in (score.high, score.low))
        beside += f", {' to '.join(ends)}{' points' if score.percent else ''}"
    return {"value": f"{unit * score.value:.4g}{mark}", "beside": beside}


def _front_figure(found: TuneResult) -> str:
    """Every file that was run, cost to the right and exactness up; the front is a line."""
    smallest = found.goals.smallest
    files = [e for e in found.evaluated if e.score.sqnr_db is not None]
    if not files:
        return ""
    cost = {e.key: e.size / 1024 if smallest else e.speedup for e in files}
    front = [e for key in found.front for e in files if e.key == key]

    def draw(axes: Axes) -> None:
        axes.plot(
            [cost[e.key] for e in front],
            [e.score.sqnr_db or 0.0 for e in front],
            color=SERIES[1],
            linewidth=1.4,
        )
        for e in files:
            best = e.key == found.best.key
            kept = found.goals.is_met(e)
            color = SERIES[3] if kept else SERIES[0]
            axes.plot([cost[e.key]], [e.score.sqnr_db or 0.0], "o", color=color, markersize=6)
            said = f"{e.number}: the best" if best else str(e.number)
            axes.annotate(
                escape_math(said),
                (cost[e.key], e.score.sqnr_db or 0.0),
                xytext=(6, 5),
                textcoords="offset points",
                color=INK,
                fontsize=8,
                fontweight="bold" if best else "normal",
            )
        if found.goals.min_sqnr is not None:
            axes.axhline(found.goals.min_sqnr, color=SERIES[2], linewidth=1, linestyle="--")
        axes.margins(0.12)
        axes.set_xlabel("KiB" if smallest else "times as fast as the float model")
        axes.set_ylabel("SQNR of the outputs in dB")

    low, high = (f(e.score.sqnr_db or 0.0 for e in files) for f in (min, max))
    return draw_svg("Every file that was run", 3.4 if np.ptp([low, high]) else 2.6, draw)
