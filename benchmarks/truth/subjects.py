"""What the command of a case is given, its float model, and the new samples."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.measured import Outputs, Runner, open_file
from benchmarks.truth.cases import Case
from benchmarks.truth.pools import Pool, fit

__all__ = ["OPSET", "Subject", "prepare"]

Arrays = Mapping[str, np.ndarray]
OPSET = 17
DECODER = "text-generation-with-past"


@dataclass(frozen=True)
class Subject:
    """A case that is ready to run in a folder.

    Attributes:
        command: MODEL and --data with the options that they need.
        plain: the user's float ONNX file; None where there is none.
        plains: the files that a user of torch.onnx may have, one by each exporter; else `plain`.
        reference: the float model.
        batches: new samples, in batches as the file is measured.
        timed: samples of the calibration, for the speed.
        output: the output that counts, where the others are no results; "" for all.
    """

    command: tuple[str, ...]
    plain: Path | None
    reference: Runner
    batches: tuple[Arrays, ...]
    timed: Arrays
    output: str = ""
    plains: tuple[Path, ...] = ()


def prepare(case: Case, pool: Pool, folder: Path) -> Subject:
    """Make network, float file and data in a folder; the pool is split at random."""
    rng = np.random.default_rng([case.seed, 0])
    arrays = pool.make(rng, case.calibration + case.new)
    order = rng.permutation(case.calibration + case.new)
    fitted, new = (
        {k: a[part] for k, a in arrays.items()}
        for part in (order[: case.calibration], order[case.calibration :])
    )
    if case.form == "folder":
        return _of_folder(case, pool, folder, fitted["text"], new["text"])
    np.savez(folder / "calibration.npz", **fitted)
    data: tuple[str, ...] = ("--data", "calibration.npz")
    if pool.whole:
        data = ("--data", "modules:stacked")
    elif case.batch != 32:
        data = (*data, "--batch-size", str(case.batch))
    if case.form == "file":
        plain, source = Path(pool.source), (pool.source,)
    else:
        plain, source = _of_module(case, pool, folder, fitted)
    size = 1 if case.form == "onnx-1" else case.batch
    return Subject(
        (*source, *data),
        plain,
        open_file(plain),
        tuple(_batches(new, size, pool.whole)),
        {k: a[0] if pool.whole else a for k, a in fitted.items()},
        plains=exported(plain),
    )


def exported(plain: Path) -> tuple[Path, ...]:
    """Return the float file and, where there is one, that of torch.onnx's other exporter."""
    other = plain.with_stem(f"{plain.stem}-old")
    return (plain, other) if other.exists() else (plain,)


def _batches(arrays: Arrays, size: int, whole: bool) -> list[Arrays]:
    count = len(next(iter(arrays.values())))
    if whole:
        return [{k: a[i] for k, a in arrays.items()} for i in range(count)]
    return [{k: a[i : i + size] for k, a in arrays.items()} for i in range(0, count, size)]


def _of_module(
    case: Case, pool: Pool, folder: Path, arrays: Arrays
) -> tuple[Path, tuple[str, ...]]:
    """Return the float file and the words of the command."""
    module, _, factory = pool.source.partition(":")
    torch.manual_seed(case.seed)
    network = getattr(import_module(module), factory)()
    if not pool.weights:
        fit(pool, network, case.seed)
    elif pool.weights.endswith(".safetensors"):
        from safetensors.torch import load_file

        network.load_state_dict(load_file(pool.weights))
    else:
        network.load_state_dict(torch.load(pool.weights, map_location="cpu", weights_only=True))
    network.eval()
    plain = folder / "float.onnx"
    size = 1 if case.form == "onnx-1" else 2
    example = {k: torch.from_numpy(a[:size]) for k, a in arrays.items()}
    axes = (0,) if size > 1 else ()
    if case.form == "torch":
        _export_twice(network, example, plain, axes)
    else:
        _export_old(network, example, plain, axes)
    if case.form != "torch":
        return plain, (plain.name,)
    weights = {k: v.detach().clone().contiguous() for k, v in network.state_dict().items()}
    save_file(weights, folder / "weights.safetensors")
    return plain, (pool.source, "--weights", "weights.safetensors")


def _export_twice(
    network: nn.Module, example: Mapping[str, Any], plain: Path, axes: tuple[int, ...]
) -> None:
    """Write a network by both exporters of torch.onnx, the old one's file under another name; under
    this one where the default refuses the network."""
    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(axes, dynamic) for _ in example)
    other = plain.with_stem(f"{plain.stem}-old")
    with contextlib.suppress(Exception):
        _export_old(network, example, other, axes)
    try:
        _write(network, example, plain, dynamic_shapes=shapes, dynamo=True, verbose=False)
    except Exception:
        if not other.exists():
            raise
        other.rename(plain)


def _export_old(
    network: nn.Module, example: Mapping[str, Any], plain: Path, axes: tuple[int, ...]
) -> None:
    names = {k: {a: f"N{a}" for a in axes} for k in example}
    _write(network, example, plain, dynamic_axes=names, opset_version=OPSET, dynamo=False)


def _write(network: nn.Module, example: Mapping[str, Any], plain: Path, **options: Any) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        arguments = (network, tuple(example.values()), str(plain))
        torch.onnx.export(*arguments, input_names=list(example), **options)


def _of_folder(case: Case, pool: Pool, folder: Path, fitted: Any, new: Any) -> Subject:
    """A transformers model: texts one by one, from an empty KV cache where it has one."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    decoder = case.network == "language_model"
    tokenizer = AutoTokenizer.from_pretrained(pool.source)
    kind = AutoModelForCausalLM if decoder else AutoModel
    model = kind.from_pretrained(pool.source, dtype=torch.float32).eval()
    (folder / "calibration.txt").write_text("\n".join(fitted), encoding="utf-8")
    (folder / "new.txt").write_text("\n".join(new), encoding="utf-8")
    command = [pool.source, "--data", "calibration.txt"]
    if decoder:
        command += ["--task", DECODER]
    if decoder and not case.memory:  # block-wise takes no data for the evaluation
        command += ["--eval-data", "new.txt"]
    cache = _empty_cache(model.config) if decoder else {}

    def tokens(text: str) -> Arrays:
        both = tokenizer(text, return_tensors="np")
        names = ("input_ids", "attention_mask")
        return {**{n: both[n].astype(np.int64) for n in names}, **cache}

    def reference(arrays: Arrays) -> Outputs:
        ids, mask = (torch.from_numpy(arrays[n]) for n in ("input_ids", "attention_mask"))
        with torch.inference_mode():
            result = model(input_ids=ids, attention_mask=mask)
        name = "logits" if decoder else "last_hidden_state"
        return {name: result[name].numpy()}

    batches = tuple(tokens(str(t)) for t in new)
    timed = tokens(str(fitted[0]))
    plain = None if decoder else _encoder_file(model, timed, folder / "float.onnx")
    output = "logits" if decoder else ""
    files = exported(plain) if plain else ()
    return Subject(tuple(command), plain, reference, batches, timed, output, files)


def _empty_cache(config: Any) -> dict[str, np.ndarray]:
    shape = (1, config.num_key_value_heads, 0, config.head_dim)
    layers = range(config.num_hidden_layers)
    names = [f"past_key_values.{i}.{part}" for i in layers for part in ("key", "value")]
    return {n: np.zeros(shape, np.float32) for n in names}


class _Encoder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(input_ids=ids, attention_mask=mask)[0]
        return states


def _encoder_file(model: nn.Module, arrays: Arrays, plain: Path) -> Path | None:
    """The encoder as torch.onnx writes it, for its speed; None where torch.onnx cannot."""
    names = ("input_ids", "attention_mask")
    example = {n: torch.from_numpy(arrays[n]).repeat(2, 1) for n in names}
    try:
        _export_twice(_Encoder(model), example, plain, (0, 1))
    except Exception:  # noqa: BLE001  # torch.onnx may raise anything
        return None
    return plain
