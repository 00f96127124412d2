"""Plan: pure decisions about what is quantized, with which parameters, and why."""

from qtool.plan.plan import CHANNELS, Decision, Edge, Point, QuantPlan, Rewrite, describe
from qtool.plan.planner import make_plan

__all__ = [
    "CHANNELS",
    "Decision",
    "Edge",
    "Point",
    "QuantPlan",
    "Rewrite",
    "describe",
    "make_plan",
]
