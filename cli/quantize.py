"""qtool quantize"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from qtool.cli import options, output, sources
from qtool.cli.command import Command
from qtool.cli.convert import write


@click.command("quantize", cls=Command)
@sources.apply(
    sources.model,
    sources.weights,
    sources.data_or_none,
    sources.decoder,
    options.output,
    sources.batch_size,
    options.observer,
    options.target,
    options.format_,
    options.external_data,
    options.layout,
    options.interface,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    sources.dynamic,
    options.min_coverage,
    options.min_sqnr,
    options.timing,
    options.json_,
)
def command(
    model: str,
    weights: Path | None,
    data: str,
    shape: str | None,
    output_: Path,
    batch_size: int,
    observer: str | None,
    target: str | None,
    format_: str,
    external_data: bool,
    layout: str,
    interface: str | None,
    recipe: Path | None,
    mode: str | None,
    accuracy: str | None,
    recover: str | None,
    dynamic: tuple[str, ...],
    min_coverage: float | None,
    min_sqnr: float | None,
    timing: float,
    as_json: bool,
) -> None:
    """Calibrate MODEL on data and write its verified int8 ONNX model.

    MODEL is package.module:factory (with --weights), a .pt2 or a float .onnx file, or a
    transformers or timm model folder.

    \b
    Example:
      qtool quantize examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data calib_data/digits -o digits.int8.onnx
    """
    import qtool
    from qtool.core.atomic import check_writable
    from qtool.core.option_names import file_format, suffixes_of
    from qtool.frontends.captured_model import DEFAULT_OBSERVER
    from qtool.planning.targets import DEFAULT, check_format

    check_writable(output_, model, weights, data, suffixes=suffixes_of(format_))
    check_format(target or DEFAULT, file_format(output_, format_))
    loaded, batches = sources.load_model_and_data(model, weights, data, shape, batch_size)
    share = None if batches is None else sources.share_of(batches)
    quantized = qtool.quantize(
        loaded,
        share,
        target=target or DEFAULT,
        observer=observer or DEFAULT_OBSERVER,
        recipe=recipe,
        mode=mode,
        accuracy=accuracy,
        recover=options.names(recover),
        dynamic=sources.dynamic_of(dynamic, batches),
        progress=output.progress("calibrating", output.length_of(share)),
    )
    goals = (min_coverage, min_sqnr)
    extra = partial(sources.write_companions, model, loaded)
    ports = (layout, interface)
    write(quantized, output_, goals, timing, as_json, format_, external_data, extra, ports)
