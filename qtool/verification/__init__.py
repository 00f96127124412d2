"""Verification: nothing is called done before the runtime has shown it."""

from qtool.verification.artefact import Artefact
from qtool.verification.by_step import Steps, check_steps
from qtool.verification.coverage import AuditRow, Coverage, audit, executed, planned
from qtool.verification.exact import Exactness, compare_codes
from qtool.verification.fidelity import Fidelity, costliest, fidelity, narrow_inputs
from qtool.verification.file_check import FileCheck
from qtool.verification.parity import Difference, Parity, compare
from qtool.verification.result import Verification
from qtool.verification.self_check import SelfCheck, check_self_test
from qtool.verification.self_test import make_self_test
from qtool.verification.structure import Expected, check_structure, check_well_formed

__all__ = [
    "Artefact",
    "AuditRow",
    "Coverage",
    "Difference",
    "Exactness",
    "Expected",
    "Fidelity",
    "FileCheck",
    "Parity",
    "SelfCheck",
    "Steps",
    "Verification",
    "audit",
    "check_self_test",
    "check_steps",
    "check_structure",
    "check_well_formed",
    "compare",
    "compare_codes",
    "costliest",
    "executed",
    "fidelity",
    "make_self_test",
    "narrow_inputs",
    "planned",
]
