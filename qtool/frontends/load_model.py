"""Models as people have them: a factory's name or call, a file, a folder of a model hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from qtool.core.errors import CaptureError, describe
from qtool.core.paths import is_dir
from qtool.frontends.huggingface.model_folder import load_folder
from qtool.frontends.named_objects import call_user_code, evaluate_call, import_object, is_call
from qtool.frontends.onnx import load_onnx
from qtool.frontends.state_dicts import load_weights
from qtool.frontends.torch.exported_program import load_program

_FILES: Mapping[str, Callable[[str], nn.Module | ExportedProgram]] = {
    ".onnx": load_onnx,
    ".pt2": load_program,
}


def load_model(
    source: str | Path, weights: str | Path | None = None, task: str | None = None
) -> nn.Module | ExportedProgram:
    """A model in eval mode.

    Args:
        source: `package.module:factory`, `package.module:factory(arguments)` with literals, a
            `.pt2` or `.onnx` file, or a folder of transformers or timm (config.json and
            safetensors).
        weights: a state dict for a factory's model.
        task: of a transformers folder: which head it is loaded with; by default the one that its
            weights were saved with.

    Raises:
        CaptureError: nothing is found there, or it is no model, or the weights do not fit, or a
            package that it needs is missing.
    """
    source = str(source)
    path = Path(source)
    reader = _FILES.get(path.suffix)
    if task is not None and not is_dir(path):
        raise CaptureError(
            f"a task is for a folder of transformers, not for {source}; leave it out"
        )
    if reader is not None or is_dir(path):
        if weights is not None:
            raise CaptureError(f"{source} holds its own weights; leave out --weights")
        return reader(source) if reader is not None else load_folder(path, task)
    if ":" not in source:
        raise CaptureError(
            f"'{source}' is no model; give package.module:factory (a function or class that "
            "returns an nn.Module), a .pt2 or .onnx file, or a folder with a config.json"
        )
    model = _from_code(source)
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{source} gives a {type(model).__name__}, not an nn.Module")
    if weights is not None:
        load_weights(model, weights)
    try:
        model.eval()  # one of the user's own may give nothing back
    except RecursionError as error:
        raise CaptureError(
            f"{source} holds itself as a module inside; keep such a reference where torch does not "
            "look for modules, in a list or a dict"
        ) from error
    except Exception as error:
        raise CaptureError(f"{source}: its eval() fails: {describe(error)}") from error
    return model


def _from_code(source: str) -> Any:
    if is_call(source):
        return evaluate_call(source, CaptureError)
    found = import_object(source, CaptureError)
    if isinstance(found, nn.Module):
        return found
    return call_user_code(found, [], {}, source, CaptureError)
