"""Verification: nothing is called done before the runtime has shown it."""

from qtool.verification.artefact import Artefact
from qtool.verification.by_step import Steps, check_steps
from qtool.verification.coverage import AuditRow, Coverage, audit, executed, planned
from qtool.verification.exact import Exactness, compare_codes
from qtool.verification.fidelity import Fidelity, costliest, fidelity, narrow_inputs
from qtool.verification.parity import Difference, Parity, compare
from qtool.verification.result import Verification
from qtool.verification.structure import Expected, check_structure, check_well_formed

__all__ = [
    "Artefact",
    "AuditRow",
    "Coverage",
    "Difference",
    "Exactness",
    "Expected",
    "Fidelity",
    "Parity",
    "Steps",
    "Verification",
    "audit",
    "check_steps",
    "check_structure",
    "check_well_formed",
    "compare",
    "compare_codes",
    "costliest",
    "executed",
    "fidelity",
    "narrow_inputs",
    "planned",
]
