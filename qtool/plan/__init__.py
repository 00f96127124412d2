"""Plan: pure decisions about what is quantized, with which parameters, and why."""

from qtool.plan.plan import (
    Decision,
    Edge,
    Execution,
    Kind,
    Point,
    Probe,
    QuantPlan,
    Rewrite,
    describe,
)
from qtool.plan.planner import make_plan

__all__ = [
    "Decision",
    "Edge",
    "Execution",
    "Kind",
    "Point",
    "Probe",
    "QuantPlan",
    "Rewrite",
    "describe",
    "make_plan",
]
