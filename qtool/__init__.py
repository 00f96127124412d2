"""qtool: a trained PyTorch model in, a verified int8 ONNX model out.

    calibration = qtool.calibrate(model, batches)
    quantized = qtool.convert(model, calibration)
    quantized.export("model.int8.onnx")
    print(qtool.evaluate("model.int8.onnx", model, batches, labels))

Names are imported when they are first used, so that `qtool --help` does not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.algorithms.registry import register_step
    from qtool.api.conversion import calibrate, convert, quantize
    from qtool.api.data import load_data
    from qtool.api.evaluation import evaluate
    from qtool.api.extensions import (
        register_format,
        register_observer,
        register_operator,
        register_pass,
        register_runtime,
        register_target,
    )
    from qtool.api.fastest_recipe import fastest_recipe
    from qtool.api.file_check import verify
    from qtool.api.gate import gate
    from qtool.api.generation import generate
    from qtool.api.other_cpus import verify_on, verify_on_webgpu
    from qtool.api.quantize_options import QuantizeOptions
    from qtool.api.quantize_to_file import quantize_to_file
    from qtool.api.quantized_file import EvaluationData, FileOptions, QuantizedFile, write_file
    from qtool.api.quantized_model import QuantizedModel
    from qtool.api.reports import compare, report
    from qtool.api.stored_model import quantize_by_blocks
    from qtool.api.tuned_model import TunedModel
    from qtool.api.tuning import explain, tune
    from qtool.backends.onnxruntime.emulation import (
        CpuComparison,
        CpuResult,
        WebGpuComparison,
        emulators,
    )
    from qtool.calibration.calibration import Calibration
    from qtool.core.errors import (
        CalibrationError,
        CaptureError,
        DataError,
        EmulationError,
        ExportError,
        FileError,
        InstallError,
        KernelError,
        OptionError,
        PassError,
        PlanError,
        QtoolError,
        RanksError,
        VerificationError,
    )
    from qtool.distributed import within
    from qtool.evaluation.bench import bench
    from qtool.evaluation.evaluation import Evaluation
    from qtool.evaluation.file_contents import CalibrationContents, inspect
    from qtool.evaluation.gate.result import GateResult
    from qtool.evaluation.generation import Generation
    from qtool.evaluation.latency.bench import Bench
    from qtool.evaluation.measure.model_contents import ModelContents
    from qtool.evaluation.options import Goals, ReportOptions
    from qtool.evaluation.report.report import Report
    from qtool.frontends.captured_model import Captured, capture_model
    from qtool.frontends.data.recordings import with_states
    from qtool.frontends.huggingface.meta_init import without_weights
    from qtool.frontends.load_model import load_model
    from qtool.frontends.onnx import load_onnx
    from qtool.planning.plan import QuantPlan
    from qtool.search.explanation import Explanation
    from qtool.search.fastest_recipe import FastestRecipe
    from qtool.search.goals import SearchOptions, TuneGoals
    from qtool.verification import Coverage, Exactness, FileCheck, SelfCheck, Verification

_HOMES = {
    "algorithms.registry": "register_step",
    "api.conversion": "calibrate convert quantize",
    "api.data": "load_data",
    "api.evaluation": "evaluate",
    "api.extensions": "register_format register_observer register_operator register_pass "
    "register_runtime register_target",
    "api.fastest_recipe": "fastest_recipe",
    "api.file_check": "verify",
    "api.gate": "gate",
    "api.generation": "generate",
    "api.other_cpus": "verify_on verify_on_webgpu",
    "api.quantize_options": "QuantizeOptions",
    "api.quantize_to_file": "quantize_to_file",
    "api.quantized_file": "EvaluationData FileOptions QuantizedFile write_file",
    "api.quantized_model": "QuantizedModel",
    "api.reports": "compare report",
    "api.stored_model": "quantize_by_blocks",
    "api.tuned_model": "TunedModel",
    "api.tuning": "explain tune",
    "calibration.calibration": "Calibration",
    "core.errors": "CalibrationError CaptureError DataError EmulationError ExportError FileError "
    "InstallError KernelError OptionError PassError PlanError QtoolError RanksError "
    "VerificationError",
    "distributed": "within",
    "evaluation.bench": "bench",
    "evaluation.evaluation": "Evaluation",
    "evaluation.file_contents": "CalibrationContents inspect",
    "evaluation.gate.result": "GateResult",
    "evaluation.generation": "Generation",
    "evaluation.latency.bench": "Bench",
    "evaluation.measure.model_contents": "ModelContents",
    "evaluation.options": "Goals ReportOptions",
    "evaluation.report.report": "Report",
    "frontends.captured_model": "Captured capture_model",
    "frontends.data.recordings": "with_states",
    "frontends.huggingface.meta_init": "without_weights",
    "frontends.load_model": "load_model",
    "frontends.onnx": "load_onnx",
    "planning.plan": "QuantPlan",
    "search.explanation": "Explanation",
    "search.fastest_recipe": "FastestRecipe",
    "search.goals": "SearchOptions TuneGoals",
    "verification": "Coverage Exactness FileCheck SelfCheck Verification",
    "backends.onnxruntime.emulation": "CpuComparison CpuResult WebGpuComparison emulators",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Bench",
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
    "EvaluationData",
    "Exactness",
    "Explanation",
    "ExportError",
    "FastestRecipe",
    "FileCheck",
    "FileError",
    "FileOptions",
    "GateResult",
    "Generation",
    "Goals",
    "InstallError",
    "KernelError",
    "ModelContents",
    "OptionError",
    "PassError",
    "PlanError",
    "QtoolError",
    "QuantPlan",
    "QuantizeOptions",
    "QuantizedFile",
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
    "WebGpuComparison",
    "bench",
    "calibrate",
    "capture_model",
    "compare",
    "convert",
    "emulators",
    "evaluate",
    "explain",
    "fastest_recipe",
    "gate",
    "generate",
    "inspect",
    "load_data",
    "load_model",
    "load_onnx",
    "quantize",
    "quantize_by_blocks",
    "quantize_to_file",
    "register_format",
    "register_observer",
    "register_operator",
    "register_pass",
    "register_runtime",
    "register_step",
    "register_target",
    "report",
    "tune",
    "verify",
    "verify_on",
    "verify_on_webgpu",
    "with_states",
    "within",
    "without_weights",
    "write_file",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module 'qtool' has no attribute '{name}'"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])  # for its suggestions
    from qtool.core.torch_package import TORCH, has_torch, torch_error

    try:
        return getattr(import_module(f"qtool.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != TORCH or has_torch():
            raise
        raise torch_error(f"qtool.{name}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
