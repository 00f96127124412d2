"""Folders and files whose weights are no float model: adapters, quantized weights, GGUF files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtool.core.errors import CaptureError
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import Argument, OtherFile

GGUF = ".gguf"
_ADAPTER = "adapter_config.json"
_CONFIGS = ("quantize_config.json", "quant_config.json")
"""What AutoGPTQ and AutoAWQ wrote before config.json had a `quantization_config`."""
_DEQUANTIZED = ("fp8", "mxfp4")
"""Methods whose weights transformers makes float on a CPU; for fp8 with the package accelerate."""
CODED = ("gptq", "awq", "compressed-tensors")
"""Methods whose codes become those of a file."""
_PACKED = (".qweight", ".weight_packed", ".W_q")
"""How names of packed codes end: of GPTQ and AWQ, of compressed-tensors, of HQQ."""


def check_float_weights(path: Path) -> None:
    """Refuse a file or folder whose weights are neither float nor codes of a known method.

    Raises:
        CaptureError: it is a GGUF file, or has an adapter or other quantized weights; the message
            says which, and what to give.
    """
    if path.suffix.lower() == GGUF and is_file(path):
        raise _gguf(path)
    if not is_dir(path):
        return
    if is_file(path / _ADAPTER) and not _weights(path):
        raise _adapter(path, _read(path / _ADAPTER))
    config = _read(path / "config.json")
    method = _method(path, config)
    if method is not None and method not in (*CODED, *_DEQUANTIZED):
        raise CaptureError(
            f"{path} holds weights that are quantized already, by {method}, "
            "and qtool quantizes float models",
            OtherFile("give the folder of the model that they were made from"),
        )
    files = sorted(path.glob(f"*{GGUF}"))
    if files and not _weights(path):
        raise _gguf(files[0])


def missing_weights(
    path: Path, model: object, missing: Sequence[str], stored: Iterable[str]
) -> CaptureError:
    """Return the error for a folder that lacks weights of a model.

    Args:
        path: the folder.
        model: what its weights were to be loaded into.
        missing: names of tensors that it lacks.
        stored: names of tensors in it that the model does not know.
    """
    packed = next((name for name in sorted(stored) if name.endswith(_PACKED)), None)
    if packed is not None:
        return CaptureError(
            f"{path} holds weights that are quantized already ('{packed}'), which its config.json "
            "does not say, and qtool quantizes float models",
            OtherFile("give the folder of the model that they were made from"),
        )
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return CaptureError(
        f"{path} has no weights for {type(model).__name__} (missing: {missing[0]}{more})",
        Argument("--task", text="choose the {} that it was trained for"),
    )


def _gguf(file: Path) -> CaptureError:
    load = f"AutoModelForCausalLM.from_pretrained({str(file.parent)!r}, gguf_file={file.name!r})"
    return CaptureError(
        f"{file} is a GGUF file of llama.cpp, mostly with quantized weights",
        OtherFile("give the folder of the float model that it was made from"),
        OtherFile(
            f"make one of it with transformers and the package gguf: {load}.save_pretrained(folder)"
        ),
    )


def _adapter(folder: Path, config: Mapping[str, Any]) -> CaptureError:
    base = config.get("base_model_name_or_path")
    of = f" for {base}" if isinstance(base, str) and base else ""
    kind = str(config.get("peft_type") or "PEFT")
    return CaptureError(
        f"{folder} is an adapter ({kind}){of}, no whole model",
        OtherFile(
            "merge it with the package peft and give the folder of the result: "
            f"AutoPeftModelForCausalLM.from_pretrained({str(folder)!r}).merge_and_unload()"
            ".save_pretrained(folder)"
        ),
    )


def _method(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the method of quantized weights; None for float ones."""
    described = _quantization(folder, config)
    if described is None:
        return None
    known = (("load_in_4bit", "bitsandbytes"), ("load_in_8bit", "bitsandbytes"), ("w_bit", "awq"))
    guess = next((method for key, method in (*known, ("bits", "gptq")) if described.get(key)), None)
    return str(described.get("quant_method") or guess or "a tool")


def _quantization(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the description of quantized weights; None for float ones."""
    described = config.get("quantization_config")
    if isinstance(described, dict):
        return described
    return next((c for c in map(_read, (folder / n for n in _CONFIGS)) if _bits(c)), None)


def coded(folder: Path, config: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Return the description of weights whose codes become those of a file; None for others.

    Args:
        folder: the model's folder.
        config: its config.json; None: read it.
    """
    config = _read(folder / "config.json") if config is None else config
    method = _method(folder, config)
    described = _quantization(folder, config)
    return (
        None if method not in CODED or described is None else {**described, "quant_method": method}
    )


def dequantized(config: Mapping[str, Any]) -> str | None:
    """Return the format of weights that transformers makes float as it loads them; else None."""
    described = config.get("quantization_config")
    method = described.get("quant_method") if isinstance(described, dict) else None
    return str(method) if method in _DEQUANTIZED else None


def _bits(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in ("bits", "w_bit"))


def _weights(folder: Path) -> bool:
    files = (p.name for p in folder.glob("*.safetensors"))
    return any(not name.startswith("adapter_") for name in files)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the contents of a configuration; {} if there is none that can be read."""
    if not is_file(path):  # reading a pipe would not end
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
