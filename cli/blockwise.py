"""qtool blockwise: `qtool quantize` for models larger than memory, at any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command


def _weight_files(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Return a path that exists.

    Raises:
        click.BadParameter: it does not; a model from Python has no files to read block by block.
    """
    if value.exists():
        return value
    raise click.BadParameter(
        f"'{value}' is no model folder and no .onnx file; for other models use `qtool quantize`",
        ctx,
        param,
    )


@dataclass(frozen=True)
class Data:
    """The data of a command.

    Attributes:
        source: value of --data.
        batch_size: value of --batch-size.
        dynamic: values of --dynamic.
    """

    source: str
    batch_size: int
    dynamic: tuple[str, ...]


def convert_by_blocks(
    folder: Path,
    data: Data,
    path: Path,
    how: Mapping[str, Any],
    block: int,
    min_sqnr: float | None,
    as_json: bool,
) -> None:
    """Convert a model block by block, and print the result.

    Args:
        how: target, observer, recipe, mode, accuracy and recover, as of the options.
        block: bytes of float32 weights.
        min_sqnr: least SQNR of an output in dB; None for no goal.

    Raises:
        SystemExit: with 1, the goal is missed.
    """
    import qtool
    from qtool.frontends.captured_model import DEFAULT_OBSERVER
    from qtool.planning.targets import DEFAULT

    model = sources.load_model_without_weights(folder)
    batches = sources.load_data(data.source, data.batch_size)
    chosen = {
        **how,
        "target": how["target"] or DEFAULT,
        "observer": how["observer"] or DEFAULT_OBSERVER,
        "recover": options.names(how["recover"]),
        "dynamic": sources.dynamic_of(data.dynamic, batches),
    }
    result = qtool.quantize_by_blocks(
        folder, sources.share_of(batches), path, model=model, block=block, **chosen
    )
    sources.write_companions(str(folder), model, path)
    output.show(result, as_json)
    median = result.estimate.median_db
    worst = float("inf") if median is None else median
    if min_sqnr is not None and worst < min_sqnr:
        output.warn(f"SQNR is {worst:.1f} dB, below --min-sqnr {min_sqnr:g}; the file was written")
        raise SystemExit(1)


@click.command("blockwise", cls=Command)
@source_options.apply(
    click.argument("folder", type=source_options.Path_, callback=_weight_files),
    source_options.task,
    source_options.data,
    source_options.decoder,
    options.output,
    source_options.batch_size,
    options.observer,
    options.target,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    source_options.dynamic,
    click.option(
        "--block",
        default=256,
        show_default=True,
        type=click.IntRange(1),
        help="MiB of float32 weights in memory at once; layers above a quarter of it are split.",
    ),
    options.min_sqnr,
    options.json_,
)
def command(
    folder: Path,
    data: str,
    output_: Path,
    batch_size: int,
    dynamic: tuple[str, ...],
    block: int,
    min_sqnr: float | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Quantize the model in FOLDER block by block, as `qtool quantize` does for a large one.

    FOLDER is a transformers or timm model folder with config.json and safetensors files, or an ONNX
    file with external weights. If the command is interrupted or killed, run it again: it resumes
    after the last finished block.

    \b
    Example:
      qtool blockwise llama-8b/ --data texts.txt --mode weight-only-int4 \\
          --accuracy balanced -o llama-8b.int4.onnx
    """
    inputs = Data(data, batch_size, dynamic)
    convert_by_blocks(folder, inputs, output_, how, block << 20, min_sqnr, as_json)
