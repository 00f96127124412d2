"""Verification: nothing is called done before the runtime has shown it."""

from qtool.verify.coverage import AuditRow, Coverage, audit
from qtool.verify.exact import Exactness, compare_codes
from qtool.verify.parity import Difference, Parity, compare
from qtool.verify.structure import check_structure

__all__ = [
    "AuditRow",
    "Coverage",
    "Difference",
    "Exactness",
    "Parity",
    "audit",
    "check_structure",
    "compare",
    "compare_codes",
]
