"""The float model of a quantized file as a file: what both are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.backends.formats import open_file, open_model
from qtool.core.argument_names import argument
from qtool.core.errors import VerificationError
from qtool.core.path_arguments import model_file
from qtool.core.torch_package import has_torch, torch_error
from qtool.distributed import Ranks
from qtool.evaluation.latency.interleaved_timing import FLOAT
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject

if TYPE_CHECKING:
    from qtool.evaluation.labelled_data import LabelledData
    from qtool.evaluation.planned_layers import PlannedLayers


@dataclass(frozen=True, eq=False)
class FloatSource:
    """The float model of a quantized file.

    Attributes:
        subject: its file.
        layers: returns what measures the layers of the file, or why they are not measured.
        data: the data as a model of torch takes it, from its first batch on; None where the model
            is a file, which takes it as it is.
    """

    subject: Subject
    layers: Callable[[], PlannedLayers | str]
    data: LabelledData | None = None


def float_source(
    file: str | Path,
    model: Any,
    data: LabelledData,
    folder: Path,
    *,
    dynamic: Any = None,
    other_model: bool = False,
    ranks: Ranks | None = None,
) -> FloatSource:
    """Return the float model of a file.

    A file is judged as it is. A model of torch is captured on the first batch and written.

    Args:
        file: the quantized file.
        model: the float model, or the path of its file.
        data: a model of torch is captured on its first batch.
        folder: where files are written.
        dynamic: see `capture_model`.
        other_model: accept other weights than the file was made from.
        ranks: those that share the data; None: none do.

    Raises:
        DataError: no data, or data that does not fit.
        InstallError: the model is no file, and torch is not installed.
        VerificationError: a file does not run, or was made from a model with other weights or
            other fixed inputs.
    """
    if isinstance(model, str | Path):
        model = model_file(model)
        open_file(model)  # says why it is malformed
        model = _runnable(model, Path(file))
    if not isinstance(model, Path):
        if not has_torch():
            raise torch_error(f"a {type(model).__name__} as a model")
        from qtool.api.captured_source import captured_source

        return captured_source(file, model, data, folder, dynamic, other_model, ranks or Ranks())
    check_same_files([model, Path(file)], other_model)
    subject = Subject(FLOAT, model, f"the file {model.name}", timed_name=model.name)
    note = f"layers are measured with a float model of torch as {argument('--model')}, not a file"
    return FloatSource(subject, lambda: note)


def _runnable(model: Path, file: Path) -> Any:
    """Return the path of a float file; with torch a loaded copy of one that does not run here, or
    that has inputs which are constants in the quantized file."""
    conversion = open_file(file).conversion()
    fixed = conversion is not None and bool(conversion.info.fixed_inputs)
    try:
        open_model(model)
    except VerificationError:
        if not has_torch():
            raise
    else:
        if not fixed or not has_torch():
            return model
    from qtool.api.captured_source import load_unless_runs

    return load_unless_runs(model, file)
