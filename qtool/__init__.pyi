"""The public names and their modules: type checkers read this file, and so does `qtool`."""

from qtool.algorithms.conversion_state import ConversionState as ConversionState
from qtool.algorithms.pipeline import Step as Step
from qtool.algorithms.registry import register_step as register_step
from qtool.api.conversion import calibrate as calibrate, convert as convert, quantize as quantize
from qtool.api.evaluation import evaluate as evaluate
from qtool.api.extensions import (
    register_format as register_format,
    register_observer as register_observer,
    register_operator as register_operator,
    register_pass as register_pass,
    register_runtime as register_runtime,
    register_target as register_target,
)
from qtool.api.file_check import verify as verify
from qtool.api.gate import gate as gate
from qtool.api.generation import generate as generate
from qtool.api.quantize_to_file import (
    quantize_to_file as quantize_to_file,
    quantize_to_files as quantize_to_files,
)
from qtool.api.quantized_file import (
    EvaluationData as EvaluationData,
    QuantizedFile as QuantizedFile,
    write_file as write_file,
)
from qtool.api.quantized_model import QuantizedModel as QuantizedModel
from qtool.api.reports import compare as compare, report as report
from qtool.api.stored_model import quantize_by_blocks as quantize_by_blocks
from qtool.backends.model_file import FileFormat as FileFormat
from qtool.backends.onnx.export import write_float as write_float
from qtool.backends.runtime import Runtime as Runtime
from qtool.calibration.calibration import Calibration as Calibration
from qtool.core.conversion_options import (
    FileOptions as FileOptions,
    QuantizeOptions as QuantizeOptions,
)
from qtool.core.data.noise_inputs import noise_input as noise_input
from qtool.core.data_options import DataOptions as DataOptions
from qtool.core.errors import (
    CalibrationError as CalibrationError,
    CaptureError as CaptureError,
    DataError as DataError,
    EmulationError as EmulationError,
    ExportError as ExportError,
    FileError as FileError,
    InstallError as InstallError,
    KernelError as KernelError,
    OptionError as OptionError,
    PassError as PassError,
    PlanError as PlanError,
    QtoolError as QtoolError,
    RanksError as RanksError,
    VerificationError as VerificationError,
)
from qtool.core.option_names import Accuracy as Accuracy, Mode as Mode
from qtool.core.search_options import SearchOptions as SearchOptions
from qtool.core.types import Change as Change
from qtool.distributed import use_process_group as use_process_group
from qtool.evaluation.bench import bench as bench
from qtool.evaluation.evaluation import Evaluation as Evaluation
from qtool.evaluation.file_contents import (
    CalibrationContents as CalibrationContents,
    inspect as inspect,
)
from qtool.evaluation.gate.result import GateResult as GateResult
from qtool.evaluation.generation import Generation as Generation
from qtool.evaluation.bench import Bench as Bench
from qtool.evaluation.file_contents import ModelContents as ModelContents
from qtool.evaluation.options import (
    GateOptions as GateOptions,
    GenerationOptions as GenerationOptions,
    Goals as Goals,
    ReportOptions as ReportOptions,
)
from qtool.evaluation.report.report import Report as Report
from qtool.evaluation.speedup import Speedup as Speedup
from qtool.frontends.captured_model import Captured as Captured, capture_model as capture_model
from qtool.api.data import load_data as load_data
from qtool.frontends.data.recordings import unroll_recordings as unroll_recordings
from qtool.frontends.huggingface.meta_init import init_empty_weights as init_empty_weights
from qtool.frontends.load_model import load_model as load_model
from qtool.frontends.onnx.onnx_file import load_onnx as load_onnx
from qtool.metrics.metric import Metric as Metric
from qtool.passes import GraphPass as GraphPass
from qtool.planning.plan import QuantPlan as QuantPlan
from qtool.planning.recipe import Recipe as Recipe, Rule as Rule
from qtool.planning.targets import KernelRule as KernelRule, Target as Target
from qtool.plugins.emulators.other_cpus import (
    verify_on as verify_on,
)
from qtool.plugins.emulators.result import CpuComparison as CpuComparison, CpuResult as CpuResult
from qtool.plugins.search.goals import TuneGoals as TuneGoals
from qtool.plugins.search.tuned_model import TunedModel as TunedModel
from qtool.plugins.search.tuning import tune as tune
from qtool.verification import (
    Coverage as Coverage,
    Exactness as Exactness,
    Fidelity as Fidelity,
    FileCheck as FileCheck,
    Parity as Parity,
    Portability as Portability,
    SelfCheck as SelfCheck,
    SessionCheck as SessionCheck,
    Verification as Verification,
)

__version__: str
