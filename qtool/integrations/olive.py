"""A pass for Microsoft Olive that writes a verified file of qtool.

`python -m qtool.integrations.olive packages.json` writes the package configuration of the installed
Olive with this pass added: a package configuration of one's own replaces the one that Olive ships.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from olive.common.config_utils import validate_config
from olive.constants import Precision
from olive.data.config import DataConfig
from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.handler.pytorch import PyTorchModelHandlerBase
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.search.search_parameter import Categorical

import qtool
from qtool.planning.recipe import ACCURACIES

PASS = {
    "module_path": "qtool.integrations.olive.QtoolQuantization",
    "supported_providers": ["CPUExecutionProvider"],
    "supported_accelerators": ["cpu"],
    "supported_precisions": [Precision.INT8.value],
    "supported_quantization_encodings": ["qdq"],
    "dataset": "dataset_required",
}
"""The entry of the pass in Olive's package configuration."""

_ARGUMENTS = {
    "target": (str, "The runtime to quantize for, as `qtool quantize --target`."),
    "mode": (str, "The scheme of everything that no rule of the recipe selects."),
    "accuracy": (str, "Which steps recover accuracy: fast, balanced or best."),
    "recover": (tuple[str, ...], "Exactly these steps, by name."),
    "ignore": (tuple[str, ...], "Nodes that stay in float: names, globs, re: or op: and a word."),
    "recipe": (str, "A .toml or .json file with settings for parts of the model."),
}
"""Argument of `qtool.QuantizeOptions` -> its type and what Olive shows of it."""


class QtoolQuantization(Pass):  # type: ignore[misc]  # Olive ships no type information
    """Quantize an ONNX, PyTorch or Hugging Face model with qtool.

    The file appears only after the integer engine has computed its codes.
    """

    @classmethod
    def _default_config(
        cls,
        accelerator_spec: AcceleratorSpec,  # noqa: ARG003  # part of Olive's signature
    ) -> dict[str, PassConfigParam]:
        """Return the parameters of the pass. The name is Olive's."""
        levels = Categorical(list(ACCURACIES))
        arguments = {
            name: PassConfigParam(
                type_=kind,
                default_value=None,
                search_defaults=levels if name == "accuracy" else None,
                description=text,
            )
            for name, (kind, text) in _ARGUMENTS.items()
        }
        return {
            "data_config": PassConfigParam(
                type_=DataConfig | dict,
                required=True,
                description="Calibration data: batches are dicts of tensors, labels are ignored.",
            ),
            "save_as_external_data": PassConfigParam(
                type_=bool,
                default_value=False,
                description="Store the weights in a file next to the model.",
            ),
            **arguments,
        }

    def _run_for_config(
        self,
        model: ONNXModelHandler | PyTorchModelHandlerBase,
        config: BasePassConfig,
        output_model_path: str,
    ) -> ONNXModelHandler:
        """Return the quantized model. The name is Olive's.

        Raises:
            ValueError: qtool refuses the model, the data or an option.
        """
        chosen = {n: v for n in _ARGUMENTS if (v := getattr(config, n)) is not None}
        path = resolve_onnx_path(output_model_path)
        try:
            qtool.quantize_to_file(
                _source(model),
                _batches(model, config.data_config),
                path,
                qtool.QuantizeOptions(**chosen),
                qtool.FileOptions(external_data=config.save_as_external_data, timing=0),
            )
        except qtool.QtoolError as error:
            raise ValueError(str(error)) from error  # of a pass error Olive logs and exits with 0
        if config.save_as_external_data:
            return ONNXModelHandler(str(Path(path).parent), onnx_file_name=Path(path).name)
        return ONNXModelHandler(path)


def _source(model: ONNXModelHandler | PyTorchModelHandlerBase) -> Any:
    """Return what `qtool.quantize_to_file` takes as a model."""
    if isinstance(model, ONNXModelHandler):
        return model.model_path
    if isinstance(model, PyTorchModelHandlerBase):
        return model.load_model().eval()
    raise ValueError(f"qtool takes ONNX, PyTorch and Hugging Face models, no {model.type}")


def _batches(model: ONNXModelHandler | PyTorchModelHandlerBase, data: Any) -> Any:
    """Return an iterator over the batches of Olive's data, dicts of arrays."""
    container = validate_config(data, DataConfig).to_data_container()
    inputs = {}
    if isinstance(model, ONNXModelHandler):  # in the dtypes of the file
        inputs = {"model_path": model.model_path, "io_config": model.io_config}
    return iter(container.create_calibration_dataloader(**inputs).get_next, None)


def package_configuration() -> dict[str, Any]:
    """Return the package configuration of the installed Olive with this pass added."""
    text = Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8")
    installed: dict[str, Any] = json.loads(text)
    return installed | {"passes": installed["passes"] | {"QtoolQuantization": PASS}}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(package_configuration(), indent=4), "utf-8")
