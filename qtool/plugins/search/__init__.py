"""Mixed-precision search: choose the scheme of each layer so that a goal is met.

`search_loop` evaluates candidates that the additive `cost_model` proposes; `pareto_front` finds the
configurations that no other dominates; `goals` states what is accepted.
"""

from qtool.core.plugins import Plugin

_HERE = "qtool.plugins.search"

PLUGIN = Plugin(
    documents={
        "Explanation": f"{_HERE}.explanation:Explanation",
        "TuneResult": f"{_HERE}.tune_result:TuneResult",
    },
)
