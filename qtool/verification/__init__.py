"""Verification of exported files of any format: results, and comparisons with the plan.

What opens and runs the files of one runtime is in the folder of its backend; what needs the
fake-quantized model is in `qtool.simulation`.
"""

from qtool.verification.coverage import AuditRow, Coverage, planned_coverage
from qtool.verification.exactness import Exactness
from qtool.verification.fidelity import Fidelity, compare_outputs
from qtool.verification.parity import Difference, NodeParity, Parity
from qtool.verification.portability import Portability
from qtool.verification.self_check import FileCheck, SelfCheck, SessionCheck
from qtool.verification.verification_result import Verification

__all__ = [
    "AuditRow",
    "Coverage",
    "Difference",
    "Exactness",
    "Fidelity",
    "FileCheck",
    "NodeParity",
    "Parity",
    "Portability",
    "SelfCheck",
    "SessionCheck",
    "Verification",
    "compare_outputs",
    "planned_coverage",
]
