"""qtool quantize"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import NO_DATA, Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import ModelOptions
from qtool.cli.value_types import Bytes

from qtool.core.conversion_options import FileOptions, QuantizeOptions


@click.command("quantize", cls=Command)
@source_options.apply(
    source_options.model,
    record("loading", ModelOptions),
    source_options.data_or_none(required=False),
    reads("classes"),
    options.labels,
    click.option(
        "--eval-data",
        help="Measure accuracy on this data, in a form of --data; with --labels alone on --data.",
    ),
    options.output,
    record("how", QuantizeOptions),
    record("file", FileOptions),
    options.output_kind,
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
    loading: ModelOptions,
    reading: Reading,
    output_: Path,
    how: QuantizeOptions,
    file: FileOptions,
    output_kind: tuple[str, ...],
    memory: int | None,
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
    from qtool.api.model_parts import PartInputs
    from qtool.api.quantize_to_file import ModelSource, quantize_source
    from qtool.api.stored_model import options_in_use
    from qtool.blockwise.memory_plan import StoredModel
    from qtool.core.downloads import local_model
    from qtool.frontends.huggingface.foreign_weights import coded
    from qtool.planning.recipe import with_output_kinds

    named = reading.sources
    has_codes = coded(Path(local_model(model))) is not None
    weights_alone = has_codes or (how.mode or "").startswith("weight-only")
    of_texts = named.data == NO_DATA and Path(model).is_dir()  # they cannot be generated
    if named.data is None or (of_texts and weights_alone):
        if not weights_alone:  # it quantizes activations
            raise click.MissingParameter(param_type="option", param_hint="'--data'")
        named = replace(named, data=NO_DATA)
        if how.recipe is None and how.recover is None:
            how = replace(how, accuracy=how.accuracy or "fast")
    has_data, reading = named.data != NO_DATA, replace(reading, sources=named)
    place = FileTarget.check(output_, model, file, loading.weights, named.data)
    sources.check_data(reading)
    without_steps = how.accuracy == "fast" and how.recover is None
    without_steps &= has_codes or how.recipe is None
    on_texts = weights_alone and without_steps and not has_data and named.shape is None
    how = replace(how, recipe=with_output_kinds(how.recipe, output_kind))

    def load_empty() -> Any:
        nonlocal reading
        module, of_data = sources.load_model_without_weights(Path(model), loading)
        reading = reading.of(model, of_data)
        return module

    def inputs_of(module: Any) -> PartInputs:
        if isinstance(module, StoredModel):
            place, inputs, batches = reading, module, sources.load_data(reading)
        else:
            place = reading.of(model, module)
            inputs, batches = sources.load_inputs(place, loading.cache)
        if on_texts:
            batches = sources.load_example_texts(place, model)
        evaluation = sources.load_evaluation(place, batches)
        share = None if batches is None else sources.share_of(batches)
        return PartInputs(inputs, share, evaluation)

    whole_only = {
        "--shape": named.shape is not None,
        "--weights": loading.weights is not None,
        "--fix": loading.fixed is not None,
    }
    source = ModelSource(
        lambda: sources.load_model(model, loading, with_parts=True),
        load_empty,
        inputs_of,
        loading.task,
        options_in_use(whole_only),
        has_data,
    )
    for written in quantize_source(source, place, how, memory):
        output.show_file(written, model)
