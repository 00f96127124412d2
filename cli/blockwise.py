"""qtool blockwise: `qtool quantize` for models larger than memory, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, parsed_options, source_options, sources
from qtool.cli.command import Command
from qtool.cli.convert import exit_if_missed, show_file


def _weight_files(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Return a path that exists.

    Raises:
        click.BadParameter: it does not; a model from Python has no files to read block by block.
    """
    value = source_options.from_cache(ctx, param, value)
    if value.exists():
        return value
    raise click.BadParameter(
        f"'{value}' is no model folder and no .onnx file; for other models use `qtool quantize`",
        ctx,
        param,
    )


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
    options.ignore,
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
    observer: str | None,
    target: str | None,
    recipe: Path | None,
    mode: str | None,
    accuracy: str | None,
    recover: str | None,
    ignore: tuple[str, ...],
    dynamic: tuple[str, ...],
    block: int,
    min_sqnr: float | None,
    as_json: bool,
    **_: Any,
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
    from qtool.api.file_target import FileTarget
    from qtool.api.model_parts import PartInputs, quantize_parts
    from qtool.api.quantize_options import QuantizeOptions
    from qtool.api.quantized_file import FileOptions
    from qtool.api.stored_model import StoredModel
    from qtool.blockwise.memory_plan import LIMIT, self_test_memory
    from qtool.frontends.captured_model import DEFAULT_OBSERVER

    place = FileTarget.check(output_, folder, FileOptions(timing=0, min_sqnr=min_sqnr), data)
    chosen = QuantizeOptions(
        target,
        observer or DEFAULT_OBSERVER,
        recipe,
        mode,
        accuracy,
        options.names(recover),
        ignore or None,
        parsed_options.parse_dynamic(dynamic),
    ).for_format(place.format)
    sizes = block << 20, self_test_memory(output_, LIMIT)
    stored = StoredModel(folder, sources.load_model_without_weights(folder), *sizes)

    def inputs_of(module: Any) -> PartInputs:
        return PartInputs(module, sources.share_of(sources.load_data(data, batch_size)))

    for file in quantize_parts({"": stored}, inputs_of, chosen, place):
        show_file(file, as_json, str(folder))
        exit_if_missed(file)
