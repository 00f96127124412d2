"""Plan: pure decisions about what is quantized, with which parameters, and why."""

from qtool.plan.ops import OPS, OpRow, Role, data_inputs, row_of
from qtool.plan.plan import Decision, Edge, Point, Probe, QuantPlan, Rewrite, describe
from qtool.plan.planner import make_plan

__all__ = [
    "OPS",
    "Decision",
    "Edge",
    "OpRow",
    "Point",
    "Probe",
    "QuantPlan",
    "Rewrite",
    "Role",
    "data_inputs",
    "describe",
    "make_plan",
    "row_of",
]
