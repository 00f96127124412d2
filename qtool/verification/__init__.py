"""Verification of exported files: in the runtime, against the plan and the integer engine."""

from qtool.verification.bit_exactness import Exactness, compare_codes
from qtool.verification.costly_layers import costliest_layers, narrow_inputs
from qtool.verification.exported_file import ExportedFile
from qtool.verification.fidelity import Fidelity, compare_outputs
from qtool.verification.file_check import FileCheck
from qtool.verification.file_parity import Difference, Parity, check_parity
from qtool.verification.integer_coverage import (
    AuditRow,
    Coverage,
    executed_coverage,
    planned_coverage,
)
from qtool.verification.node_parity import NodeParity, compare_nodes
from qtool.verification.onnxruntime_audit import audit
from qtool.verification.qdq_structure import Expected, check_structure, check_well_formed
from qtool.verification.run_self_test import SelfCheck, check_self_test
from qtool.verification.self_test_creation import make_self_test
from qtool.verification.verification_result import Verification

__all__ = [
    "AuditRow",
    "Coverage",
    "Difference",
    "Exactness",
    "Expected",
    "ExportedFile",
    "Fidelity",
    "FileCheck",
    "NodeParity",
    "Parity",
    "SelfCheck",
    "Verification",
    "audit",
    "check_parity",
    "check_self_test",
    "check_structure",
    "check_well_formed",
    "compare_codes",
    "compare_nodes",
    "compare_outputs",
    "costliest_layers",
    "executed_coverage",
    "make_self_test",
    "narrow_inputs",
    "planned_coverage",
]
