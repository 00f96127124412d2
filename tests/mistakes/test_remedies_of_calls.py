"""Each remedy of a call's error is applied: the next call works."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.formats import format_of
from qtool.backends.session import PortInfo
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.errors import QtoolError
from qtool.core.option_names import file_format
from qtool.core.remedies import Argument, DataEdit, Package
from qtool.evaluation.feeder import Feeder
from qtool.planning import targets
from tests.mistakes.nets import IMAGES, image_net, quantize
from tests.mistakes.remedies import check_offer
from tests.needs import needs_litert, needs_web


def same(value: Any) -> Any:
    return value


def _float_inputs(edit: Callable[[Any], Any], *batches: torch.Tensor) -> object:
    return quantize([edit(batch) for batch in batches])


def _check_measurable(target: str, path: str) -> None:
    format_of(file_format(path, "qdq")).check_measurable(targets.target(target))


def _in_node(threads: int = 2) -> None:
    from qtool.plugins.emulators.web.session import WebSession

    WebSession("float.onnx", threads)


def _without_litert(installed: bool = False) -> None:
    from qtool.plugins.tflite import litert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(litert, "version_of", lambda name: "2.0" if installed else "")
        litert.require()


def _without_timm(installed: bool = False) -> None:
    from qtool.frontends.optional_packages import require

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm", ModuleType("timm") if installed else None)
        require("timm", "the model", qtool.CaptureError)


BYTES = (IMAGES * 50).clamp(0, 255).to(torch.uint8)


def _integer_inputs(kind: str, batch: torch.Tensor, true: torch.Tensor) -> Callable[..., object]:
    """Return a call with a batch for an input of integers, whose edit makes the true ones."""

    def call(edit: Callable[[Any], Any] = same) -> None:
        session: Any = SimpleNamespace(inputs=[PortInfo("x", f"tensor({kind})", ("n", 3, 8, 8))])
        Feeder(session).fit([edit(batch).numpy()], 0)
        assert int((edit(batch).int() - true.int()).abs().max()) <= 1

    return call


CALLS: dict[str, tuple[Callable[..., object], set[str]]] = {
    "a search for another CPU": (
        lambda target="onnxruntime-arm", path="out.onnx": _check_measurable(target, path),
        {"backends/onnxruntime/machines --target"},
    ),
    "a search for a microcontroller": (
        lambda target="tflite-micro", path="out.tflite": _check_measurable(target, path),
        {"plugins/tflite/deployment --target"},
    ),
    "a search in ONNX files for LiteRT": (
        lambda target="tflite", path="out.onnx": _check_measurable(target, path),
        {"backends/onnxruntime/machines -o", "backends/onnxruntime/machines --target"},
    ),
    "a .tflite file of a model for ONNX Runtime": (
        lambda target="onnxruntime": quantize([IMAGES], target=target).export("out.tflite"),
        {"plugins/tflite/planned_export --target"},
    ),
    "threads in node": (_in_node, {"plugins/emulators/web/session --threads"}),
    "LiteRT is missing": (_without_litert, {"plugins/tflite/litert ai-edge-litert"}),
    "timm is missing": (_without_timm, {"frontends/optional_packages timm"}),
    "sparse": (
        lambda edit=same: _float_inputs(edit, IMAGES.to_sparse()),
        {"core/data/batch x.to_dense()"},
    ),
    "integers for floats": (
        lambda edit=same: _float_inputs(edit, IMAGES, IMAGES.long()),
        {"core/graph/float_graph x.to(torch.float32)"},
    ),
    "bytes for floats": (
        lambda edit=same: _float_inputs(edit, IMAGES, BYTES),
        {"core/graph/float_graph x.float() / 255"},
    ),
    "floats of 0 to 255 for bytes": (
        _integer_inputs("uint8", BYTES.float(), BYTES),
        {"core/shape_remedies x.to(torch.uint8)"},
    ),
    "bytes for int64": (
        _integer_inputs("int64", BYTES, BYTES),
        {"core/shape_remedies x.to(torch.int64)"},
    ),
    "a single sample": (
        lambda edit=same: _float_inputs(edit, IMAGES[0]),
        {"core/graph/float_graph x[None]"},
    ),
    "channels last": (
        lambda edit=same: _float_inputs(edit, IMAGES.permute(0, 2, 3, 1)),
        {"core/graph/float_graph x.permute(0, 3, 1, 2)"},
    ),
    "a target without kernels for a network": (
        lambda target="openvino": quantize([IMAGES], _transposed(), target=target),
        {"planning/planner --target"},
    ),
}
"""Mistake -> (call, what its error must offer); an edit of the data is the argument `edit`."""
MARKS = {
    "a search for a microcontroller": needs_litert,
    "a search in ONNX files for LiteRT": needs_litert,
    "threads in node": needs_web,
}


def _transposed() -> nn.Module:
    return nn.ConvTranspose2d(3, 6, 3, groups=3).eval()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("call", "sites"),
    [pytest.param(*case, id=name, marks=MARKS.get(name, ())) for name, case in CALLS.items()],
)
def test_a_call_with_the_remedy(call: Callable[..., object], sites: set[str]) -> None:
    with pytest.raises(QtoolError) as caught:
        call()
    error = caught.value
    check_offer(error, sites)
    for remedy in error.remedies:
        if isinstance(remedy, DataEdit) and remedy.code:
            call(edit=lambda x, code=remedy.code: eval(code, {"x": x, "torch": torch}))
        elif isinstance(remedy, Argument):
            named = str(Argument(remedy.name, remedy.value, "{}")).replace("FILE", "other")
            named = named if remedy.value is not None else f"{named[1:-1]}='onnxruntime'"
            call(**eval(f"dict({named})"))
        elif isinstance(remedy, Package):
            call(installed=True)


def test_a_note_names_a_step_that_works() -> None:
    captured = qtool.capture_model(image_net(), IMAGES)
    fast = qtool.calibrate(captured, [IMAGES], accuracy="fast")
    fast = replace(fast, kept_samples=CalibrationSamples(0))
    notes = qtool.convert(captured, fast, recover=["gptq"]).notes
    note = next(n for n in notes if "kept no samples" in n)
    named = note.partition("calibrate again with ")[2]
    again = qtool.calibrate(captured, [IMAGES], accuracy="fast", **eval(f"dict({named})"))
    assert not any("kept no samples" in n for n in qtool.convert(captured, again).notes)
