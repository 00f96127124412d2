"""Each remedy of an error is applied: the next command or call works, or has another true error."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main
from torch import nn

import qtool
from qtool.backends.table import format_of
from qtool.core import remedies
from qtool.core.argument_names import options_in_messages
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.errors import QtoolError
from qtool.core.option_names import file_format
from qtool.core.remedies import Argument, DataEdit, Omission, Package, Remedy
from qtool.planning import targets
from tests.mistakes.nets import IMAGES, flat_net, image_net, quantize, rows, token_net

M = "tests.mistakes.nets"
QUANTIZE = f"quantize {M}:image_net --data images.npy -o out.onnx"
MICRO = f"quantize {M}:image_net --data images.npy -o out.tflite --target tflite-micro"
QUICKLY = {"quantize": "--accuracy fast --timing 0", "evaluate": "--seconds 0.01"}
"""Command -> what makes it quick."""
VALUES = {
    "--data": f"{M}:images",
    "--shape": "3,8,8",
    "--target": "onnxruntime",
    "--batch-sizes": "4",
    "--eval": f"{M}:score",
    "--fix": "n=3",
    "--model": "float.onnx",
    "--other-model": "",
    "--calibration": "float.calib",
}
"""Argument, or placeholder of a value -> what the user chooses."""
FLAGS = ("--external-data",)
SCALES = "convert float.onnx --scales weights.onnx --calibration float.calib"

COMMANDS: dict[str, tuple[str, set[str]] | tuple[str, set[str], dict[str, str]]] = {
    "weights alone, of unknown sizes": (
        f"quantize {M}:image_net --mode weight-only -o out.onnx",
        {"api/conversion_inputs --data", "api/conversion_inputs --shape"},
    ),
    "no data and no BatchNorm": (
        f"calibrate {M}:rows --data none --shape 3,8,8 -o c.calib",
        {"calibration/data_free --data"},
    ),
    "a layout of folders for a factory": (
        f"quantize {M}:image_net --data images.npy --layout optimum -o out",
        {"api/model_folder --layout"},
        {"--layout": "name the file out.onnx"},
    ),
    "a folder that is named as a file": (
        "quantize bert --data images.npy --layout optimum -o out.onnx",
        {"api/model_folder -o"},
        {"-o": "bert has no weights in safetensors"},
    ),
    "a .tflite file of a model larger than --memory": (
        "quantize float.onnx --data vectors.npy --memory 1 -o out.tflite",
        {"api/quantize_to_file -o", "api/stored_model --memory"},
    ),
    "another format of a model larger than --memory": (
        "quantize float.onnx --data vectors.npy --memory 1 --format qoperator -o out.onnx",
        {"api/quantize_to_file --format", "api/stored_model --memory"},
    ),
    "no data of a model larger than --memory": (
        "quantize float.onnx --mode weight-only --memory 1 -o out.onnx",
        {"api/stored_model --data", "api/stored_model --memory"},
        {"--data": "the batch gives float32[40, 3, 8, 8]"},
    ),
    "weights alone in a .tflite file": (
        f"quantize {M}:image_net --data images.npy --mode weight-only -o out.tflite",
        {"backends/tflite/export/convert --mode"},
    ),
    "a layer in float on a microcontroller": (
        f"{MICRO} --recipe layer.toml",
        {
            "backends/tflite/microcontroller --recipe",
            "backends/tflite/microcontroller --target",
        },
    ),
    "two sizes that follow the batch in a .tflite file": (
        f"quantize {M}:similarities --data images.npy -o out.tflite",
        {"backends/tflite/export/writer --target"},
    ),
    "a batch size that a file does not have": (
        "bench four.onnx --batch-sizes 3 --seconds 0.01",
        {"evaluation/latency/bench --batch-sizes"},
    ),
    "labels for a model without classes": (
        f"evaluate rows.onnx --model {M}:rows --data images.npy --labels labels.npy",
        {"evaluation/measure/regression --eval"},
    ),
    "an input of texts": (
        "bench texts.onnx",
        {"evaluation/model_inputs --data"},
        {"--data": "batch 0 lacks input"},
    ),
    "a file of other weights": (
        f"evaluate image.onnx --model {M}:other_weights --data images.npy",
        {"evaluation/same_model --other-model"},
    ),
    "weights in a file of their own for .tflite": (
        f"quantize {M}:image_net --external-data --data images.npy -o out.tflite",
        {"api/quantize_to_file --external-data"},
    ),
    "a layout of images for an ONNX file": (
        f"{QUANTIZE} --layout nhwc",
        {"api/quantize_to_file --layout"},
    ),
    "integers at the interface of an ONNX file": (
        f"{QUANTIZE} --interface int8",
        {"api/quantize_to_file --interface"},
    ),
    "a task for a factory": (
        f"{QUANTIZE} --task text-classification",
        {"frontends/load_model --task"},
    ),
    "a constant for a factory": (f"{QUANTIZE} --fix n=3", {"frontends/load_model --fix"}),
    "weights for an ONNX file": (
        "quantize float.onnx --weights state.pt --data vectors.npy -o out.onnx",
        {"frontends/load_model --weights"},
    ),
    "batches of a file that takes single samples alone": (
        "quantize one.onnx --data vectors.npy -o out.onnx",
        {"frontends/onnx/onnx_file --batch-size"},
    ),
    "a dimension that the model fixes": (
        f"{QUANTIZE} --dynamic input:2",
        {"frontends/torch/export_errors --dynamic"},
    ),
    "a network inside an If": (
        "quantize branches.onnx --data branches.npz -o out.onnx",
        {"planning/planner --fix"},
    ),
    "rules that keep all in float": (
        f"{QUANTIZE} --recipe float.toml",
        {"planning/planner --recipe"},
    ),
    "a mode without kernels": (
        f"quantize {M}:rows --data images.npy --mode dynamic -o out.onnx",
        {"planning/planner --mode"},
    ),
    "scales of weights alone": (
        "convert float.onnx --scales weights.onnx -o out.onnx",
        {"api/scales --calibration"},
    ),
    "a step before the scales": (
        f"{SCALES} --recover smooth-quant -o out.onnx",
        {"api/scales --recover"},
    ),
    "steps before and after the scales": (
        f"{SCALES} --recover smooth-quant,gptq -o out.onnx",
        {"api/scales --recover"},
    ),
    "a format that the target lacks": (
        f"quantize {M}:image_net --data images.npy --target openvino -o out.tflite",
        {"planning/targets/__init__ --target"},
    ),
}
"""Mistake -> (command, what its error must offer: module below qtool/ and argument; argument -> the
other error that the changed command has, where it does not work at once)."""


def same(value: Any) -> Any:
    return value


def _float_inputs(edit: Callable[[Any], Any], *batches: torch.Tensor) -> object:
    return quantize([edit(batch) for batch in batches])


def _module_inputs(net: Callable[[], nn.Module], batch: torch.Tensor) -> Callable[..., object]:
    return lambda edit=same: quantize([edit(batch)], net())


def _check_measurable(target: str, path: str) -> None:
    format_of(file_format(path, "qdq")).check_measurable(targets.target(target))


def _in_node(threads: int = 2) -> None:
    from qtool.backends.onnxruntime_web.session import WebSession

    WebSession("float.onnx", threads)


def _without_litert(installed: bool = False) -> None:
    from qtool.backends.tflite import litert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(litert, "version_of", lambda name: "2.0" if installed else "")
        litert.require()


def _without_timm(installed: bool = False) -> None:
    from qtool.frontends.optional_packages import require

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm", ModuleType("timm") if installed else None)
        require("timm", "the model", qtool.CaptureError)


BYTES = (IMAGES * 50).clamp(0, 255).to(torch.uint8)
CALLS: dict[str, tuple[Callable[..., object], set[str]]] = {
    "a search for another CPU": (
        lambda target="onnxruntime-arm", path="out.onnx": _check_measurable(target, path),
        {"backends/onnxruntime/model_file --target"},
    ),
    "a search for a microcontroller": (
        lambda target="tflite-micro", path="out.tflite": _check_measurable(target, path),
        {"backends/tflite/model_file --target"},
    ),
    "a search in ONNX files for LiteRT": (
        lambda target="tflite", path="out.onnx": _check_measurable(target, path),
        {"backends/onnxruntime/model_file -o", "backends/onnxruntime/model_file --target"},
    ),
    "a .tflite file of a model for ONNX Runtime": (
        lambda target="onnxruntime": quantize([IMAGES], target=target).export("out.tflite"),
        {"backends/tflite/planned_export --target"},
    ),
    "threads in node": (_in_node, {"backends/onnxruntime_web/session --threads"}),
    "LiteRT is missing": (_without_litert, {"backends/tflite/litert ai-edge-litert"}),
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
    "a single sample": (
        lambda edit=same: _float_inputs(edit, IMAGES[0]),
        {"core/graph/float_graph x[None]"},
    ),
    "channels last": (
        lambda edit=same: _float_inputs(edit, IMAGES.permute(0, 2, 3, 1)),
        {"core/graph/float_graph x.permute(0, 3, 1, 2)"},
    ),
    "bytes with channels last for a module": (
        _module_inputs(image_net, BYTES.permute(0, 2, 3, 1)),
        {"frontends/torch/input_remedies x.permute(0, 3, 1, 2).float() / 255"},
    ),
    "one image for a module": (
        _module_inputs(image_net, IMAGES[0].permute(1, 2, 0)),
        {"frontends/torch/input_remedies x.permute(2, 0, 1)[None]"},
    ),
    "images for a flat network": (
        _module_inputs(flat_net, torch.randn(40, 3, 2, 2)),
        {"frontends/torch/input_remedies x.flatten(1)"},
    ),
    "floats as token ids": (
        _module_inputs(token_net, torch.ones(40, 6)),
        {"frontends/torch/input_remedies x.long()"},
    ),
    "a target without kernels for a network": (
        lambda target="openvino": quantize([IMAGES], _transposed(), target=target),
        {"planning/planner --target"},
    ),
}
"""Mistake -> (call, what its error must offer); an edit of the data is the argument `edit`."""

ELSEWHERE = {
    "api/fastest_recipe --measure": "several ranks: tests/search/test_fastest_recipe.py",
    "algorithms/conversion_state --recover": "a note: test_a_note_names_a_step_that_works",
    "api/quantize_to_file --task": "an encoder-decoder",
    "backends/onnxruntime/emulation/jobs --samples": "emulators",
    "backends/onnxruntime/emulation/jobs --timeout": "emulators",
    "backends/onnxruntime/model_file --model": "a report: tests/evaluation/report",
    "backends/tflite/model_file --model": "a report: tests/evaluation/report",
    "backends/tflite/planned_export --external-data": "Python's export, where the argument is one",
    "core/data/fixed_inputs --fix": "tests/frontends/onnx/test_size_branches.py",
    "evaluation/fixed_inputs --fix": "tests/frontends/onnx/test_size_branches.py",
    "evaluation/model_inputs --eval-data": "a decoder with a cache in int8",
    "evaluation/model_inputs --task": "a decoder with a cache",
    "frontends/data/rows --column": "tests/mistakes/test_file_remedies.py",
    "frontends/data/table_remedies --column": "tests/mistakes/test_file_remedies.py",
    "frontends/data/unused_options --processor": "tests/mistakes/test_unused_options.py",
    "frontends/data/unused_options --transform": "tests/mistakes/test_unused_options.py",
    "frontends/data/unreadable_samples --max-unreadable": "tests/mistakes/test_downloads.py",
}
"""Arguments of remedies that are not applied here, with the reason."""


def _transposed() -> nn.Module:
    return nn.ConvTranspose2d(3, 6, 3, groups=3).eval()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands name."""
    place = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        np.save("images.npy", IMAGES.numpy())
        np.save("labels.npy", np.arange(40) % 5)
        vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
        np.save("vectors.npy", vectors)
        np.savez("branches.npz", x=vectors[:1], n=[3])
        torch.save(nn.Linear(4, 3).state_dict(), "state.pt")
        Path("layer.toml").write_text('[[rules]]\nselect = "0"\nas = "float"\n')
        Path("float.toml").write_text('[[rules]]\nselect = "*"\nas = "float"\n')
        Path("bert").mkdir()
        Path("bert/config.json").write_text("{}")
        linear = "y = MatMul (x, w)"
        _save("float.onnx", "float[n, 4] x", linear)
        batches = [torch.from_numpy(vectors)]
        qtool.calibrate(qtool.load_onnx("float.onnx"), batches).save("float.calib")
        rounded = "q = QuantizeLinear (w, step, zero) d = DequantizeLinear (q, step, zero)"
        _save("weights.onnx", "float[n, 4] x", f"{rounded} y = MatMul (x, d)")
        _save("one.onnx", "float[n, 4] x", "r = Reshape (x, sizes) y = MatMul (r, w)")
        _save("four.onnx", "float[4, 4] x", linear, "float[4, 3] y")
        _save("texts.onnx", "string[n] t, float[n, 4] x", f"{linear} u = Identity (t)")
        then, other = (f"(float[n, 3] {r}) {{ {r} = MatMul (x, w) }}" for r in "te")
        _save(
            "branches.onnx",
            "float[n, 4] x, int64[1] n",
            "c = Greater (n, one) "
            f"y = If (c) <then_branch = a () => {then}, else_branch = b () => {other}>",
        )
        quantize([IMAGES], image_net()).export("image.onnx")
        quantize([IMAGES], rows()).export("rows.onnx")
    return place


def _save(name: str, inputs: str, nodes: str, output: str = "float[n, 3] y") -> None:
    weights = ", ".join(str(k / 10) for k in range(12))
    constants = f"float[4, 3] w = {{{weights}}}, int64[1] one = {{1}}, int64[2] sizes = {{1, 4}}"
    constants += ", float step = {0.01}, int8 zero = {0}"
    text = f"g ({inputs}) => ({output}) <{constants}> {{ {nodes} }}"
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{head} {text}"), name)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[QtoolError]:
    """The errors with remedies that were made so far."""
    errors: list[QtoolError] = []
    make = QtoolError.__init__

    def record(self: QtoolError, message: str = "", *remedies: Remedy) -> None:
        make(self, message, *remedies)
        errors.extend([self] if remedies else [])

    monkeypatch.setattr(QtoolError, "__init__", record)
    return errors


def key_of(remedy: Remedy) -> str:
    return remedy.code if isinstance(remedy, DataEdit) else getattr(remedy, "name", "")


def run(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the text of the errors of a command, made quick."""
    words = [*words, *QUICKLY.get(words[0], "").split()]
    result = CliRunner().invoke(main, words, prog_name="qtool")
    assert result.exit_code in (0, 1, 2, 3), result.output
    return result.exit_code, result.stderr


def changed(words: list[str], remedy: Argument | Omission) -> list[str]:
    """Return a command line with an argument replaced, added or left out."""
    words = list(words)
    for name in (remedy.name, getattr(remedy, "replaces", "")):
        if name in words:
            at = words.index(name)
            del words[at : at + (1 if name in FLAGS else 2)]
    if isinstance(remedy, Omission):
        return words
    with options_in_messages():
        spelled = str(Argument(remedy.name, remedy.value, "{}"))
    if remedy.value is None:
        spelled = f"{spelled} {VALUES[remedy.name]}"
    for placeholder, value in (("FILE.onnx", "other.onnx"), ("n=VALUE", "n=3")):
        spelled = spelled.replace(placeholder, value)
    return [*words, *shlex.split(spelled)]


def check_offer(error: QtoolError, sites: set[str]) -> None:
    names = {key_of(remedy) for remedy in error.remedies}
    assert {site.partition(" ")[2] for site in sites} <= names, error


@pytest.fixture
def here(files: Path, folder: Path) -> None:
    """The files, in the current directory."""
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS)
def test_a_command_with_the_remedy(case: Any, offered: list[QtoolError]) -> None:
    command, sites, then = (*case, {})[:3]
    code, said = run(command.split())
    errors = [e for e in reversed(offered) if str(e) in said]
    assert (code, bool(errors)) == (2, True), said
    check_offer(errors[0], sites)
    for remedy in errors[0].remedies:
        if isinstance(remedy, Argument | Omission):
            code, said = run(changed(command.split(), remedy))
            assert (code == 2) == (remedy.name in then), said
            assert then.get(remedy.name, "") in said


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("call", "sites"), CALLS.values(), ids=CALLS)
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


def test_all_arguments_of_remedies_are_applied() -> None:
    package = Path(remedies.__file__).parents[1]
    sites = set()
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "core.remedies import" not in source:
            continue
        calls = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call))
        for call in calls:
            named = isinstance(call.func, ast.Name) and call.func.id in ("Argument", "Omission")
            if named and call.args and isinstance(call.args[0], ast.Constant):
                where = path.relative_to(package).with_suffix("").as_posix()
                sites.add(f"{where} {call.args[0].value}")
    applied = {site for case in (*COMMANDS.values(), *CALLS.values()) for site in case[1]}
    arguments = {site for site in applied if site.partition(" ")[2].startswith("-")}
    assert sites <= arguments | ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= sites - arguments
