"""Mistakes outside of the model and the data: packages, torch's defaults, environment."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest
import torch

import qtool
from qtool.core.errors import CaptureError
from qtool.frontends.optional_packages import require
from tests.mistakes.mistake import Cases, check_refused
from tests.mistakes.nets import IMAGES, image_net, quantize

D = [IMAGES]
ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.2-1B"}'
REFUSED: Cases = {
    "a package that is missing": (
        lambda: _without("timm"),
        "the model needs timm, which is not installed; install the package timm",
    ),
    "a package that is broken": (
        lambda: _broken(ImportError("libfoo.so: cannot open")),
        "torchvision cannot be imported: ImportError: libfoo.so: cannot open",
    ),
    "torchvision of another torch": (
        lambda: _broken(RuntimeError("operator torchvision::nms does not exist")),
        "torchvision cannot be imported: the installed ... both from one index, in one command",
    ),
    "torchvision of another torch, behind transformers' own error": (
        lambda: _folder_that_fails("operator torchvision::nms does not exist"),
        "hub cannot be loaded: the installed torchvision ... both from one index, in one command",
    ),
    "float16 as torch's default": (
        lambda: _with_default(torch.float16),
        "torch's default dtype is torch.float16, in ... before it",
    ),
    "meta as torch's default device": (
        lambda: _quantized_on_meta(image_net()),
        "torch's default device is 'meta', which has no values; leave its context first",
    ),
    "a factory that downloads without a network": (
        lambda: qtool.load_model("tests.mistakes.test_environment:downloads"),
        "calling ... URLError: Name or service not known (...environment.py, line",
    ),
    "a factory that exits": (
        lambda: qtool.load_model("tests.mistakes.test_environment:leaves"),
        "calling ... the process (sys.exit(usage: train.py))",
    ),
    "a module that fails when it is imported": (
        lambda: _imported("raise ValueError('no GPU')"),
        "cannot import mistaken_module:net: ValueError: no GPU (mistaken_module.py, line 1)",
    ),
    "a module with a syntax error": (
        lambda: _imported("def f(:"),
        "cannot import mistaken_module:net: SyntaxError: ... syntax (mistaken_module.py, line 1)",
    ),
    "a module that imports a missing package": (
        lambda: _imported("import lightningg"),
        "cannot import mistaken_module:net: ModuleNotFoundError: No module named 'lightningg'",
    ),
    "a folder that needs its own code": (
        lambda: _folder('{"auto_map": {}, "architectures": ["Own"]}'),
        "hub needs code that is not part of transformers ... that returns the model",
    ),
    "a folder that needs its own code, with a task": (
        lambda: _folder(
            '{"auto_map": {"AutoModel": "x.X"}, "model_type": "own"}', task="fill-mask"
        ),
        "hub needs code that is not part of transformers ... that returns the model",
    ),
    "a folder with a damaged config.json": (
        lambda: _folder("{"),
        "hub/config.json cannot be read: Expecting ... double quotes: line 1 column 2 (char 1)",
    ),
    "a folder with a list for a config.json": (
        lambda: _folder("[]"),
        "hub/config.json holds a list, not a configuration",
    ),
    "a folder with weights of pickle only": (
        lambda: _folder("{}", "pytorch_model.bin"),
        "hub has no weights ... AutoModel.from_pretrained('hub').save_pretrained('hub')",
    ),
    "an adapter": (
        lambda: _hub({"adapter_config.json": ADAPTER, "adapter_model.safetensors": ""}),
        (
            "hub is an adapter (LORA) for meta-llama/Llama-3.2-1B, no whole model; merge it with "
            "... AutoPeftModelForCausalLM.from_pretrained('hub').merge_and_unload()"
        ),
    ),
    "a GGUF file": (
        lambda: _file("model.gguf"),
        "model.gguf is a GGUF ... ForCausalLM.from_pretrained('.', gguf_file='model.gguf')",
    ),
    "a GGUF file with a task": (
        lambda: _file("model.gguf", task="text-generation"),
        "model.gguf is a GGUF file of llama.cpp",
    ),
    "a folder with a GGUF file": (
        lambda: _folder("{}", "model.gguf"),
        "hub/model.gguf is a GGUF file of llama.cpp",
    ),
    **{
        f"weights of {name}": (
            lambda config=config: _folder(config, "model.safetensors"),
            f"hub holds weights that are quantized already, by {name}, ... they were made from",
        )
        for name, config in {
            "GPTQ": '{"quantization_config": {"quant_method": "gptq", "bits": 4}}',
            "AWQ": '{"quantization_config": {"quant_method": "awq", "bits": 4}}',
            "bitsandbytes": '{"quantization_config": {"load_in_4bit": true}}',
            "compressed-tensors (llm-compressor)": (
                '{"quantization_config": {"quant_method": "compressed-tensors"}}'
            ),
            "hqq": '{"quantization_config": {"quant_method": "hqq"}}',
        }.items()
    },
    "weights of AutoGPTQ": (
        lambda: _hub({"quantize_config.json": '{"bits": 4}', "config.json": "{}"}),
        "hub holds weights that are quantized already, by GPTQ",
    ),
}


def downloads() -> None:
    raise OSError("URLError: Name or service not known")


def leaves() -> None:
    sys.exit("usage: train.py")


def _without(package: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        return require(package, "the model", CaptureError)


def _broken(error: Exception) -> object:
    def fails(name: str) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtool.frontends.optional_packages.import_module", fails)
        return require("torchvision", "the model", CaptureError)


def _with_default(dtype: torch.dtype) -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return quantize(D, image_net().float())
    finally:
        torch.set_default_dtype(before)


def _quantized_on_meta(net: torch.nn.Module) -> object:
    with torch.device("meta"):
        return quantize(D, net)


def _imported(code: str) -> object:
    Path("mistaken_module.py").write_text(code)
    try:
        return qtool.load_model("mistaken_module:net")
    finally:
        os.remove("mistaken_module.py")  # noqa: PTH107
        sys.modules.pop("mistaken_module", None)


def _folder(config: str, weights: str = "", task: str | None = None) -> types.ModuleType:
    Path("hub").mkdir()
    Path("hub/config.json").write_text(config)
    Path("hub", weights or "model.safetensors").write_bytes(bytes(9))
    return qtool.load_model("hub", task=task)


def _hub(files: dict[str, str]) -> object:
    Path("hub").mkdir()
    for name, text in files.items():
        Path("hub", name).write_text(text)
    return qtool.load_model("hub")


def _file(name: str, task: str | None = None) -> object:
    Path(name).touch()
    return qtool.load_model(name, task=task)


def _folder_that_fails(cause: str) -> object:
    def fails(*args: object) -> None:
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'") from RuntimeError(cause)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtool.frontends.huggingface.model_folder._transformers", fails)
        return _folder("{}")


@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected, writes=True)
