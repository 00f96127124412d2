"""Verification: nothing is called done before the runtime has shown it."""

from qtool.verification.bit_exactness import Exactness, compare_codes
from qtool.verification.exported_file import Artefact
from qtool.verification.fidelity import Fidelity, costliest, fidelity, narrow_inputs
from qtool.verification.file_check import FileCheck
from qtool.verification.file_parity import Difference, Parity, compare
from qtool.verification.integer_coverage import AuditRow, Coverage, audit, executed, planned
from qtool.verification.make_self_test import make_self_test
from qtool.verification.node_parity import Steps, check_steps
from qtool.verification.qdq_structure import Expected, check_structure, check_well_formed
from qtool.verification.run_self_test import SelfCheck, check_self_test
from qtool.verification.verification_result import Verification

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
