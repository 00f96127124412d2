"""qtool blockwise"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources


@click.command("blockwise")
@sources.apply(
    click.argument("folder", type=sources.ExistingPath),
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
        help="MiB of weights in float32 held at once; layers with more than a quarter are split.",
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
    """Quantize the model in FOLDER, which need not fit into memory, block by block.

    FOLDER is one of transformers or timm: config.json and safetensors, in one file or in several;
    or an ONNX file with its weights beside it.
    Ended at any time, by a kill as well, the same command goes on behind the last whole block.

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
    if as_json:
        output.show_json(result.to_json())
    else:
        output.say(str(result))
