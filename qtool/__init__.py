"""qtool: a trained PyTorch model in, a verified int8 ONNX model out.

    calibration = qtool.calibrate(model, batches)
    quantized = qtool.convert(model, calibration)
    quantized.export("model.int8.onnx")
    print(qtool.evaluate("model.int8.onnx", model, batches, labels))

Names are imported when they are first used, so that `qtool --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.analysis.bench import Bench, bench
    from qtool.analysis.contents import CalibrationContents, ModelContents, inspect
    from qtool.analysis.evaluation import Evaluation
    from qtool.analysis.options import Goals, ReportOptions
    from qtool.analysis.report import Report
    from qtool.api import (
        QuantizedModel,
        TunedModel,
        calibrate,
        compare,
        convert,
        evaluate,
        explain,
        quantize,
        report,
        tune,
        verify,
        verify_on,
    )
    from qtool.blocks import BlockResult, quantize_by_blocks
    from qtool.calibration import Calibration
    from qtool.conversion import Captured, capture_model
    from qtool.emulation import CpuComparison, CpuResult, emulators
    from qtool.errors import (
        CalibrationError,
        CaptureError,
        DataError,
        EmulationError,
        ExportError,
        FileError,
        KernelError,
        OptionError,
        PassError,
        PlanError,
        QtoolError,
        RanksError,
        VerificationError,
    )
    from qtool.extend import (
        register_observer,
        register_operator,
        register_pass,
        register_step,
        register_target,
    )
    from qtool.plan import QuantPlan
    from qtool.ranks import within
    from qtool.search.explain import Explanation
    from qtool.search.goals import TuneGoals
    from qtool.search.loop import SearchOptions
    from qtool.sources.empty import unfilled
    from qtool.verification import Coverage, Exactness, FileCheck, SelfCheck, Verification

_HOMES = {
    "extend": "register_observer register_operator register_pass register_step register_target",
    "analysis.bench": "Bench bench",
    "analysis.contents": "CalibrationContents ModelContents inspect",
    "analysis.evaluation": "Evaluation",
    "analysis.options": "Goals ReportOptions",
    "analysis.report": "Report",
    "api": "QuantizedModel TunedModel calibrate compare convert evaluate explain quantize report "
    "tune verify verify_on",
    "blocks": "BlockResult quantize_by_blocks",
    "calibration": "Calibration",
    "conversion": "Captured capture_model",
    "emulation": "CpuComparison CpuResult emulators",
    "errors": "CalibrationError CaptureError DataError EmulationError ExportError FileError "
    "KernelError OptionError PassError PlanError QtoolError RanksError VerificationError",
    "plan": "QuantPlan",
    "ranks": "within",
    "search.explain": "Explanation",
    "search.goals": "TuneGoals",
    "search.loop": "SearchOptions",
    "sources.empty": "unfilled",
    "verification": "Coverage Exactness FileCheck SelfCheck Verification",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Bench",
    "BlockResult",
    "Calibration",
    "CalibrationContents",
    "CalibrationError",
    "CaptureError",
    "Captured",
    "Coverage",
    "CpuComparison",
    "CpuResult",
    "DataError",
    "EmulationError",
    "Evaluation",
    "Exactness",
    "Explanation",
    "ExportError",
    "FileCheck",
    "FileError",
    "Goals",
    "KernelError",
    "ModelContents",
    "OptionError",
    "PassError",
    "PlanError",
    "QtoolError",
    "QuantPlan",
    "QuantizedModel",
    "RanksError",
    "Report",
    "ReportOptions",
    "SearchOptions",
    "SelfCheck",
    "TuneGoals",
    "TunedModel",
    "Verification",
    "VerificationError",
    "bench",
    "calibrate",
    "capture_model",
    "compare",
    "convert",
    "emulators",
    "evaluate",
    "explain",
    "inspect",
    "quantize",
    "quantize_by_blocks",
    "register_observer",
    "register_operator",
    "register_pass",
    "register_step",
    "register_target",
    "report",
    "tune",
    "unfilled",
    "verify",
    "verify_on",
    "within",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'qtool' has no attribute '{name}'")
    return getattr(import_module(f"qtool.{_HOME_OF[name]}"), name)
