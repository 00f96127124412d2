"""Loads a model from a factory's name or call, a file, or a folder of a model hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from qtool.core.argument_names import argument
from qtool.core.downloads import local_model
from qtool.core.errors import CaptureError, describe, missing
from qtool.core.file_forms import is_torch_script
from qtool.core.on_use import OnUse
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import CallEdit, ModelEdit, Omission, OtherFile
from qtool.core.user_code import user_place
from qtool.frontends.huggingface.foreign_weights import check_float_weights
from qtool.frontends.named_objects import call_user_code, evaluate_call, import_object, is_call
from qtool.frontends.not_a_model import no_module
from qtool.frontends.state_dicts import load_weights
from qtool.frontends.torch.exported_program import load_program

ONNX = ".onnx"
_load_onnx = OnUse("qtool.frontends.onnx.onnx_file:load_onnx")
_load_folder = OnUse("qtool.frontends.huggingface.model_folder:load_folder")
_FILES: Mapping[str, Callable[[str], nn.Module | ExportedProgram]] = {
    ONNX: _load_onnx,
    ".pt2": load_program,
}


def load_model(
    source: str | Path,
    weights: str | Path | None = None,
    task: str | None = None,
    attention: str = "fused",
    fixed: Mapping[str, Any] | None = None,
) -> nn.Module | ExportedProgram:
    """Load a model in eval mode.

    Args:
        source: `package.module:factory`, `package.module:factory(arguments)` with literals, a
            `.pt2` or `.onnx` file, a folder of transformers or timm (config.json and safetensors),
            or the hub id of one in the local Hugging Face cache ("org/model").
        weights: file with a state dict for a factory's model.
        task: head of a transformers folder; by default the one that its weights were saved with.
        attention: attention of a decoder with its KV cache: "fused", one operator per layer where
            the model allows it, for padding behind the tokens and for several texts only without a
            cache or with one new token each; "masked", any padding and any batch.
        fixed: input of an ONNX file -> its value: the input becomes a constant, what depends on it
            alone is folded, and an If on it becomes one of its branches.

    Raises:
        CaptureError: there is no such model, the weights do not fit, or a package is missing.

    Example:
        >>> print(qtool.load_model("model.onnx"))
    """
    source = local_model(_text(source))
    path = Path(source)
    reader = _FILES.get(path.suffix)
    if task is not None and ":" not in source and not path.exists():
        raise missing(path, CaptureError, "folder")
    check_float_weights(path)
    if task is not None and not is_dir(path):
        raise CaptureError(
            f"{argument('--task')} is for folders of transformers, not for {source}",
            Omission("--task", "leave it out"),
        )
    if fixed and path.suffix != ONNX:
        raise CaptureError(
            f"{argument('--fix')} is for .onnx files, not for {source}",
            Omission("--fix", "leave it out"),
        )
    if reader is not None or is_dir(path):
        if weights is not None:
            raise CaptureError(f"{source} holds its own weights", Omission("--weights"))
        if fixed:
            fixed_model: nn.Module = _load_onnx(source, fixed)
            return fixed_model
        if reader is not None:
            return reader(source)
        folder_model: nn.Module = _load_folder(path, task, attention)
        return folder_model
    if ":" not in source:
        raise _no_model(source)
    return _built(source, weights)


def _built(source: str, weights: str | Path | None) -> nn.Module:
    """Return the model that code builds, in eval mode.

    Raises:
        CaptureError: see `load_model`.
    """
    model = _from_code(source)
    if not isinstance(model, nn.Module):
        raise no_module(source, model)
    if weights is not None:
        load_weights(model, weights)
    try:
        model.eval()  # a user's own eval may return nothing
    except RecursionError as error:
        raise CaptureError(
            f"{source} contains itself as a submodule",
            ModelEdit(
                "store such a reference in a list or a dict, where torch does not look for modules"
            ),
        ) from error
    except Exception as error:
        why = f"{describe(error)}{user_place(error)}"
        raise CaptureError(f"{source}: its eval() fails: {why}") from error
    return model


def _text(source: object) -> str:
    """Return a source as a text, which is no address.

    Raises:
        CaptureError: it is one, or of another type.
    """
    if not isinstance(source, str | Path):
        kind = "None" if source is None else f"a {type(source).__name__}"
        raise CaptureError(f"the source is {kind}", CallEdit("give a path or a name"))
    if "://" in str(source):
        raise CaptureError(
            f"{source} is an address", OtherFile("download it, and give the file or folder")
        )
    return str(source)


_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def _no_model(source: str) -> CaptureError:
    """Return the error of a text that names no model."""
    there = "" if is_file(source) else ", and there is no such file"
    if Path(source).suffix.lower() in _WEIGHTS:
        what = "TorchScript" if is_torch_script(source) else "weights or of pickled Python objects"
        return CaptureError(
            f"{source} is a file of {what}{there}: qtool builds no model from it",
            CallEdit(
                "give the code that builds it, package.module:factory, and its state dict with "
                f"{argument('--weights', source)}"
            ),
        )
    return CaptureError(
        f"'{source}' is no model of PyTorch or ONNX{there}",
        CallEdit(
            "give package.module:factory (a function or class that returns an nn.Module), a .pt2 "
            "or .onnx file, or a folder with a config.json (`hf download` gets one)"
        ),
    )


def _from_code(source: str) -> Any:
    if is_call(source):
        return evaluate_call(source, CaptureError)
    factory = import_object(source, CaptureError)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise CaptureError(
            f"{source} is a {type(factory).__name__}, not a function or class that returns an "
            "nn.Module"
        )
    return call_user_code(factory, [], {}, source, CaptureError)
