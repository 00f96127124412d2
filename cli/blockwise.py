"""qtool blockwise"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources
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


@click.command("blockwise", cls=Command)
@sources.apply(
    click.argument("folder", type=sources.Path_, callback=_weight_files),
    sources.task,
    sources.data,
    options.output,
    sources.batch_size,
    options.observer,
    options.target,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    sources.dynamic,
    click.option(
        "--block",
        default=256,
        show_default=True,
        type=click.IntRange(1),
        help="MiB of float32 weights in memory at once; layers above a quarter of it are split.",
    ),
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
    dynamic: tuple[str, ...],
    block: int,
    as_json: bool,
) -> None:
    """Quantize the model in FOLDER block by block; it does not have to fit into memory.

    FOLDER is a transformers or timm model folder with config.json and safetensors files, or an ONNX
    file with external weights. If the command is interrupted or killed, run it again: it resumes
    after the last finished block.

    \b
    Example:
      qtool blockwise llama-8b/ --data texts.txt --mode weight-only-int4 \\
          --accuracy balanced -o llama-8b.int4.onnx
    """
    import qtool
    from qtool.frontends.captured_model import DEFAULT_OBSERVER
    from qtool.planning.targets import DEFAULT

    task = sources.empty_model(folder)
    batches = sources.load_data(data, batch_size)
    result = qtool.quantize_by_blocks(
        folder,
        sources.share_of(batches),
        output_,
        task=task,
        target=target or DEFAULT,
        observer=observer or DEFAULT_OBSERVER,
        recipe=recipe,
        mode=mode,
        accuracy=accuracy,
        recover=options.names(recover),
        dynamic=sources.dynamic_of(dynamic, batches),
        block=block << 20,
    )
    sources.write_companions(str(folder), None, output_)
    output.show(result, as_json)
