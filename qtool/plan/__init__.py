"""Plan: pure decisions about what is quantized, with which parameters, and why."""

from qtool.plan.ops import OPS, OpRow, Role, data_inputs, row_of
from qtool.plan.plan import (
    CHANNELS,
    Decision,
    Edge,
    Execution,
    Kind,
    Point,
    QuantPlan,
    Rewrite,
    describe,
)
from qtool.plan.planner import make_plan

__all__ = [
    "CHANNELS",
    "OPS",
    "Decision",
    "Edge",
    "Execution",
    "Kind",
    "OpRow",
    "Point",
    "QuantPlan",
    "Rewrite",
    "Role",
    "data_inputs",
    "describe",
    "make_plan",
    "row_of",
]
