"""Layouts of inputs and outputs of a TFLite file: from options, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qtool.backends.export import ExportOptions
from qtool.core.argument_names import argument
from qtool.core.errors import ExportError, OptionError
from qtool.core.graph import FloatGraph
from qtool.core.remedies import CallEdit, Omission
from qtool.plugins.tflite import deployment
from qtool.plugins.tflite.export import Layout, gains_by_one_sample
from qtool.plugins.tflite.tflite_file import TfliteFile

_Choices = Mapping[str | None, bool]
_LAYOUTS: _Choices = {"nhwc": True, "nchw": False}
_INTERFACES: _Choices = {"int8": True, "float": False}
_ONE, _DYNAMIC = "1", "dynamic"
_BATCHES: _Choices = {_ONE: True, _DYNAMIC: False}


def layout_of(graph: FloatGraph, target_name: str, options: ExportOptions) -> Layout:
    """Return the layouts of inputs and outputs from the options of an export.

    Raises:
        OptionError: an unknown layout, interface or batch, or one that the target does not have.
        ExportError: the graph has no samples to take one of.
    """
    small = target_name == deployment.TARGET
    faster = small or gains_by_one_sample(graph)
    values: Sequence[tuple[str, str | None, _Choices]] = (
        ("layout", options.layout, _LAYOUTS),
        ("interface", options.interface, {**_INTERFACES, None: small}),
        ("batch", options.batch, {**_BATCHES, None: faster}),
    )
    for name, value, known in values:
        if value not in known:
            choices = " or ".join(str(choice) for choice in known if choice is not None)
            raise OptionError(f"unknown {name} '{value}'", CallEdit(f"choose {choices}"))
    layout = Layout(*(known[value] for _, value, known in values))
    if small and not layout.one_sample:
        raise OptionError(
            f"files of {target_name} are for one sample", Omission("--batch", "leave out {}")
        )
    if options.batch == _ONE and not graph.batches_are_samples:
        raise ExportError(
            "a file for one sample needs a batch in dimension 0 of every input, which this model "
            "does not have",
            Omission("--batch", "leave out {}"),
        )
    return layout


def describe_interface(file: TfliteFile, graph: FloatGraph) -> tuple[str, ...]:
    """Describe the interface of the file of a graph."""
    ports = [*file.inputs, *file.outputs]
    images = [p for p in ports if len(p.order) == 4]
    last = [p for p in images if p.order == (0, 2, 3, 1)]
    text = []
    if last:
        names = ", ".join(f"'{p.name}'" for p in last)
        text.append(
            f"layout: {names} in [N, H, W, C]; {argument('--layout', 'nchw')} keeps PyTorch's"
        )
    elif images:
        text.append("layout: as in PyTorch")
    remarks = ["; ".join(text)] if text else []
    small = file.metadata.get("target") == deployment.TARGET
    if file.is_fixed and graph.batches_are_samples and not small:
        remarks.append(f"batch: one sample; {argument('--batch', _DYNAMIC)} takes any number")
    if small:
        remarks.append(deployment.describe(file))
    return tuple(remarks)
