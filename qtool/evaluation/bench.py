"""Timing of files on the user's data or on random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import Bars, no_bars
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.evaluation.feeder import file_inputs
from qtool.evaluation.latency.bench import Bench, time_in_turns
from qtool.evaluation.options import ReportOptions


@accepts_paths("files", models="files")
def bench(
    files: Sequence[str | Path],
    data: Iterable[Any] | None = None,
    *,
    batch_sizes: Sequence[int] | None = None,
    threads: Sequence[int] = ReportOptions.threads,
    runtime: str = NATIVE,
    seconds: float = 10.0,
    precision: float = 0.01,
    bars: Bars = no_bars,
) -> Bench:
    """Time files in turns in one process; decoders with a prompt and, with a KV cache, a step.

    Args:
        files: models with the same inputs; the first is the reference.
        data: batches; the first one is used, cut or repeated. By default random inputs.
        batch_sizes, threads: every pair of them is timed. By default 1 and 32, of files that take
            one size that size.
        runtime: "onnxruntime" for this machine's (LiteRT for .tflite files); "node" for
            onnxruntime-web's WebAssembly in node, on one thread; "webgpu" for the WebGPU
            provider on a GPU.
        seconds: maximum per pair.
        precision: a pair ends when every ratio's 95 % interval is within this of its median.
        bars: returns a progress bar for a title and a length.

    Raises:
        OptionError: a number is NaN, infinite or out of its range, or the runtime is unknown.
        DataError: files with different inputs, no data, data that does not fit, or a batch size
            that a file does not accept.
        FileError: not a model file.
        VerificationError: a file does not run, or the runtime is not installed.

    Example:
        >>> print(qtool.bench(["model.onnx", "model.int8.onnx"]))
    """

    def first_batch(path: Path) -> list[Array]:
        first = next(file_inputs(path, () if data is None else data), None)
        if first is None:
            raise DataError("the data is empty", DataEdit("give at least one batch"))
        return first

    return time_in_turns(
        files,
        None if data is None else first_batch,
        batch_sizes=batch_sizes,
        threads=threads,
        runtime=runtime,
        seconds=seconds,
        precision=precision,
        bars=bars,
    )
