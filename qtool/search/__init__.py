"""Mixed-precision search: choose the scheme of each layer so that a goal is met.

`search_loop` evaluates candidates that the additive `cost_model` proposes; `pareto_front` finds the
configurations that no other dominates; `goals` states what is accepted.
"""
