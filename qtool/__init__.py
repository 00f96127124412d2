"""qtool: a trained PyTorch model in, a verified int8 ONNX model out.

    calibration = qtool.calibrate(model, batches)
    quantized = qtool.convert(model, calibration)
    quantized.export("model.int8.onnx")
    print(qtool.evaluate("model.int8.onnx", model, batches, labels))

Names are imported when they are first used, so that `qtool --help` does not wait for torch. The
table of names and modules is `__init__.pyi`.
"""

import ast as _ast
import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path

_MODULES = {
    alias.name: statement.module
    for statement in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, _ast.ImportFrom)
    for alias in statement.names
}

__all__ = sorted(_MODULES)  # noqa: PLE0605  # it knows lists alone


def __getattr__(name: str) -> object:
    if name == "__version__":
        from qtool.core.versions import own_version

        return own_version()
    if name not in _MODULES:
        message = f"module 'qtool' has no attribute '{name}'"
        raise AttributeError(message, name=name, obj=_sys.modules[__name__])  # for its suggestions
    from qtool.core.plugins import PACKAGE, missing
    from qtool.core.torch_package import TORCH, has_torch, torch_error

    try:
        return getattr(_import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if _MODULES[name].startswith(f"{error.name}.") and PACKAGE in str(error.name):
            raise missing(f"qtool.{name}") from error
        if (error.name or "").partition(".")[0] != TORCH or has_torch():
            raise
        raise torch_error(f"qtool.{name}") from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
