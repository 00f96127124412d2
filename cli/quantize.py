"""qtool quantize"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, parsed_options, source_options, sources
from qtool.cli.command import Command
from qtool.cli.convert import exit_if_missed, show_file
from qtool.cli.labels import labels_within
from qtool.cli.number_types import Bytes

from qtool.core import formats


@click.command("quantize", cls=Command)
@source_options.apply(
    source_options.model,
    source_options.weights,
    source_options.data_or_none(required=False),
    options.labels,
    source_options.classes,
    click.option(
        "--eval-data",
        help="Measure accuracy on this data, in a form of --data; with --labels alone on --data.",
    ),
    source_options.decoder,
    options.output,
    source_options.batch_size,
    options.observer,
    options.target,
    options.format_,
    options.external_data,
    options.layout,
    options.interface,
    options.batch,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    options.ignore,
    options.measure,
    source_options.dynamic,
    options.min_coverage,
    options.min_sqnr,
    options.timing,
    click.option(
        "--memory",
        type=Bytes(),
        metavar="SIZE",
        help="Memory to use, such as 3GiB. A model folder or ONNX file that takes more is "
        "converted block by block, and resumes if it is interrupted; by default only one with more "
        "than 4 GiB of float32 weights.",
    ),
    options.json_,
)
def command(
    model: str,
    weights: Path | None,
    data: str | None,
    shape: str | None,
    labels: str | None,
    eval_data: str | None,
    output_: Path,
    batch_size: int,
    observer: str | None,
    target: str | None,
    format_: str,
    external_data: bool,
    layout: str | None,
    interface: str | None,
    batch: str | None,
    recipe: Path | None,
    mode: str | None,
    accuracy: str | None,
    recover: str | None,
    ignore: tuple[str, ...],
    measure: Path | None,
    dynamic: tuple[str, ...],
    min_coverage: float | None,
    min_sqnr: float | None,
    timing: float,
    memory: int | None,
    as_json: bool,
) -> None:
    """Calibrate MODEL on data and write its verified int8 ONNX model.

    MODEL is package.module:factory (with --weights), a .pt2 or a float .onnx file, a transformers
    or timm model folder, or the hub id of one in the local cache (org/model). A folder or an .onnx
    file that takes more than --memory is converted block by block.

    \b
    Example:
      qtool quantize examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data calib_data/digits -o digits.int8.onnx
    """
    from qtool.api.file_target import FileTarget
    from qtool.api.model_parts import PartInputs, parts_of, quantize_parts
    from qtool.api.quantize_options import QuantizeOptions
    from qtool.api.quantized_file import FileOptions
    from qtool.api.stored_model import (
        GIVE_DATA,
        WITHOUT_DATA,
        StoredModel,
        options_in_use,
        refuse_blocks,
    )
    from qtool.core.hub_cache import local_model
    from qtool.frontends.captured_model import DEFAULT_OBSERVER
    from qtool.frontends.huggingface.foreign_weights import coded

    has_codes = coded(Path(local_model(model))) is not None
    weights_only = has_codes or (mode or "").startswith("weight-only")
    of_texts = data == source_options.NO_DATA and Path(model).is_dir()  # they cannot be generated
    if data is None or (of_texts and weights_only):
        data = _no_data(weights_only)
        accuracy = accuracy or ("fast" if recipe is None and recover is None else None)
    on_texts = (
        *(data == source_options.NO_DATA, weights_only, accuracy == "fast", recover is None),
        has_codes or recipe is None,
    )
    written = FileOptions(
        format_, external_data, layout, interface, batch, timing, min_coverage, min_sqnr
    )
    with _usage_errors():
        place = FileTarget.check(output_, model, written, weights, data)
    chosen = QuantizeOptions(
        target,
        observer or DEFAULT_OBSERVER,
        recipe,
        mode,
        accuracy,
        options.names(recover),
        ignore or None,
        parsed_options.parse_dynamic(dynamic),
        measure,
    ).for_format(place.format)
    chosen.check_measure(weights, data, eval_data)
    sources.check_data(data, eval_data, labels=labels)
    limit = _memory_of_all_ranks(memory)
    needed = _memory_beyond(Path(model), limit, output_)
    loaded: Any
    if needed is None:
        loaded = sources.load_model(model, weights, with_parts=True)
    else:
        refused = place.refused_by_blocks
        refused |= {WITHOUT_DATA: GIVE_DATA} if data == source_options.NO_DATA else {}
        options_with_values = {
            "--shape": shape is not None,
            "--weights": weights is not None,
            "--fix": bool(source_options.context_value("fix")),
            "--measure": measure is not None,
        }
        with _usage_errors():
            refuse_blocks(model, needed, refused | options_in_use(options_with_values))
        empty = sources.load_model_without_weights(Path(model))
        loaded = StoredModel.of(Path(model), empty, output_, memory and limit, chosen.as_recipe())
    with _usage_errors():
        parts = parts_of(loaded, place, source_options.context_value("task"))
        writer = place.writer(parts)

    def inputs_of(module: Any) -> PartInputs:
        own = labels if eval_data is None else labels_within(labels, data)
        if isinstance(module, StoredModel):
            inputs, batches = module, sources.load_data(data, batch_size, own)
        else:
            inputs, batches = sources.load_inputs(model, module, data, shape, batch_size, own)
        if all(on_texts) and shape is None:
            batches = sources.load_example_texts(model, module)
        evaluation = sources.load_evaluation(eval_data, labels, data, batches, batch_size)
        share = None if batches is None else sources.share_of(batches)
        return PartInputs(inputs, share, evaluation)

    for file in quantize_parts(parts, inputs_of, chosen, place, writer):
        show_file(file, as_json, model)
        exit_if_missed(file)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Report options that do not suit each other as click does."""
    from qtool.core.errors import OptionError

    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error)) from error


def _no_data(weights_only: bool) -> str:
    """Return the value of --data where it is left out, which only weights allow.

    Raises:
        click.MissingParameter: activations are quantized.
    """
    if not weights_only:
        raise click.MissingParameter(param_type="option", param_hint="'--data'")
    return source_options.NO_DATA


def _memory_of_all_ranks(memory: int | None) -> int:
    """Return the least memory that a rank may use.

    Args:
        memory: value of --memory; by default a constant, the same on every machine.
    """
    from qtool.blockwise.memory_plan import LIMIT
    from qtool.distributed import current

    return min(map(int, current().all_gather(str(LIMIT if memory is None else memory))))


def _memory_beyond(model: Path, limit: int, output_: Path) -> int | None:
    """Return the memory that a conversion of the whole model takes, if it is more than the limit.

    An interrupted conversion block by block resumes, whatever the limit is now. A conversion of the
    whole model that takes more than what is free gets a warning.

    Args:
        model: value of MODEL.
        limit: memory to use.
        output_: value of --output.
    """
    from qtool.blockwise.memory_plan import memory_beyond, whole_memory
    from qtool.core.memory import available_memory

    if (beyond := memory_beyond(model, output_, limit)) is not None:
        output.warn(
            f"converted block by block: as a whole {model} takes about {formats.size(beyond)}"
        )
        return beyond
    needed, free = whole_memory(model), available_memory()
    if free is not None and needed > free:
        size = formats.size(free).replace(" ", "")
        output.warn(
            f"converting {model} as a whole takes about {formats.size(needed)}, and "
            f"{formats.size(free)} are free; --memory {size} converts it block by block"
        )
    return None
