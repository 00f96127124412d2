"""Each change of a call or a function that an error names is made: the next call works."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

import qtool
from qtool.backends import profiles
from qtool.backends.formats import FORMATS
from qtool.core import ops
from qtool.core.remedies import CallEdit
from qtool.evaluation.user_metrics import over_data, user_metrics
from qtool.frontends.data.collators import TransformCollator
from qtool.frontends.data.rows import Row
from qtool.metrics.named_metrics import find_metric
from qtool.observers import MinMax
from qtool.passes import GraphPass
from qtool.planning.recipe import Recipe
from qtool.planning.recipe.rule import check_regex
from qtool.planning.targets import TARGETS
from qtool.plugins.emulators.cpus import parse_cpus
from tests.backends.onnx.operators.outside import Gate, gate, restored, write_gate
from tests.mistakes.nets import IMAGES, captured, image_net, quantize
from tests.mistakes.remedies import Edit, check_edit

aten = torch.ops.aten
MINE = replace(TARGETS["openvino"], name="mine", description="a runtime of mine")
"""A target from outside."""


def operator(of: Any = gate, **options: Any) -> Any:
    return lambda: qtool.register_operator(of, **{"onnx": Gate, **options})


def target(**changes: Any) -> Any:
    return lambda: qtool.register_target(replace(MINE, **changes))


def own_pass(name: str = "mine", reason: str = "", times: int = 1, to: str | None = None) -> Any:
    each = GraphPass(name, lambda module: 0, reason=reason)
    return lambda: [qtool.register_pass(each, target=to) for _ in range(times)]


def observer(name: str) -> Any:
    return lambda: qtool.register_observer(name, statistic=MinMax, estimate=lambda *_: (0, 1))


def rule(**entries: Any) -> Any:
    return lambda: Recipe.of([entries])


def proto(**changes: Any) -> onnx.FunctionProto:
    made = Gate.to_function_proto()
    for name, value in changes.items():
        made.ClearField(name)
        getattr(made, name).extend(value)
    return made


def without_domain() -> onnx.FunctionProto:
    made = Gate.to_function_proto()
    made.domain = ""
    return made


def metric(result: object) -> Any:
    return lambda: user_metrics(lambda model: result, [Path("float.onnx")], "score")


def transformed(*shapes: tuple[int, ...]) -> Any:
    """Return the use of a transform that makes tensors of these shapes."""
    made = iter(shapes)
    collate = TransformCollator(lambda image: torch.zeros(next(made)), "transform")
    return lambda: collate([Row(image=Path("a.png")) for _ in shapes])


def data(**options: Any) -> Any:
    return lambda: qtool.load_data("table.csv", **options)


NET = "tests.mistakes.nets:image_net"


def load(source: str) -> Any:
    return lambda: qtool.load_model(source)


def own_function(name: str, key: str = "CompositeExplicitAutograd") -> Any:
    """Return the registration of an operator whose function is registered under a key."""

    def call() -> None:
        library = torch.library.Library("qtool_edits", "FRAGMENT")
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.relu, key)
        LIBRARIES.append(library)
        qtool.register_operator(f"qtool_edits::{name}", onnx=write_gate)

    return call


LIBRARIES: list[Any] = []  # an operator ends with its library


EDITS: dict[str, Edit] = {
    "use letters, digits and underscores": (observer("min max"), observer("min_max_2")),
    "remove one": (target(no_kernel={"conv": "slow"}), target(no_kernel={})),
    "register it first": (
        target(rewrites=("mine",)),
        lambda: (own_pass(reason="faster", to="openvino")(), target(rewrites=("mine",))()),
    ),
    "register it once": (own_pass(times=2), own_pass("other")),
    "set `reason` to what it improves": (own_pass(to="tflite"), own_pass("n", "faster", 1, "qnn")),
    "give qtool.{}(...)": (
        lambda: qtool.tune(captured(), [IMAGES], [IMAGES], goals={"max_drop": 0.1}),  # type: ignore[arg-type]  # a dict
        lambda: qtool.TuneGoals(max_drop=0.1),
    ),
    "give a function, or one that writes its nodes": (operator(onnx=None), operator()),
    "give an ONNX function": (
        operator(onnx=write_gate, kernel=torch.relu),
        operator(kernel=torch.relu),
    ),
    "give it one of its own": (operator(onnx=without_domain()), operator()),
    "give a function that writes its nodes": (operator(aten.cat.default, onnx=proto()), operator()),
    "make them agree": (operator(onnx=proto(input=["x"])), operator()),
    "name its attributes as the operator's arguments that are no tensors": (
        operator(onnx=proto(attribute=["alpha"])),
        operator(),
    ),
    "define it with torch.library before it is registered": (
        operator("qtool_edits::later"),
        own_function("later"),
    ),
    "load its extension first": (operator("qtool_edits::last"), own_function("last")),
    "give one that returns new tensors": (operator(aten.relu_, onnx=write_gate), operator()),
    'register its function for "CompositeExplicitAutograd" or a device instead': (
        own_function("composite", "CompositeImplicitAutograd"),
        own_function("explicit"),
    ),
    "give at least one": (
        lambda: ops.register(ops.Op(key="none", targets=())),
        lambda: ops.register(ops.Op(key="one", targets=(aten.special_entr.default,))),
    ),
    "choose another name": (target(name="tflite"), target(name="another")),
    "choose another suffix": (
        lambda: qtool.register_format(replace(FORMATS[0], names=("mine",))),
        lambda: qtool.register_format(replace(FORMATS[0], names=("mine",), suffix=".mine")),
    ),
    "choose from {}, or {}": (lambda: parse_cpus("i386"), lambda: parse_cpus("haswell")),
    "choose one of {}": (
        lambda: profiles.profile("mine"),
        lambda: profiles.profile("onnxruntime-avx2"),
    ),
    "choose {}": (
        lambda: quantize([IMAGES], target="tflite").export("a.tflite", layout="hwc"),
        lambda: None,
    ),
    "give {}{}": (data(batch_size=0), data(batch_size=1)),
    "give names of columns": (data(column=[1]), data(column=["a"])),
    "give the name of a column or array (values go to what evaluates)": (
        data(labels=[0, 1]),
        data(labels="b"),
    ),
    "give output -> input, or {}": (
        lambda: qtool.load_data("x.npy", states="h"),
        lambda: qtool.load_data("x.npy", states="auto", model=image_net()),
    ),
    "give a list of paths": (
        lambda: qtool.compare("float.onnx", [IMAGES]),  # type: ignore[arg-type]  # one path
        lambda: None,
    ),
    "write {}": (lambda: find_metric("top-1@5"), lambda: find_metric("top-1")),
    "return a number, or numbers by name": (metric({}), metric({"score": 1.0})),
    "return a number, or one per sample": (metric(None), metric([1.0, 2.0])),
    "pass them, or batches of inputs and labels such as (images, masks)": (
        lambda: _over([IMAGES], None),
        lambda: _over([IMAGES], torch.arange(40)),
    ),
    "resize to one shape": (transformed((3, 8, 8), (3, 8, 9)), transformed((3, 8, 8), (3, 8, 8))),
    "return one image, without the first dimension": (
        transformed((1, 3, 8, 8)),
        transformed((3, 8, 8)),
    ),
    "{}": (
        lambda: qtool.quantize(nn.Linear, [IMAGES]),  # type: ignore[arg-type]  # a class
        lambda: qtool.capture_model(nn.Linear(8, 3).eval(), IMAGES),
    ),
    "call it, and give its result": (
        lambda: quantize(lambda: [IMAGES]),  # type: ignore[arg-type]  # a function
        lambda: quantize([IMAGES]),
    ),
    "write package.module:name": (load(":image_net"), load(NET)),
    "write the module of the code, package.module, not the path of a file": (
        load("tests/mistakes/nets.py:image_net"),
        load(NET),
    ),
    "write {}(VALUE, ...)": (load("torch.nn:Linear"), load("torch.nn:Linear(4, 3)")),
    "write package.module:factory(arguments), each argument a number, a text, a list or a dict": (
        load("torch.nn:Linear(a, b)"),
        load("torch.nn:Linear(4, 3)"),
    ),
    "give package.module:factory (a function or class that returns an nn.Module), a .pt2 or .onnx "
    "file, or a folder with a config.json (`hf download` gets one)": (load("a.png"), load(NET)),
    "give the code that builds it, package.module:factory, and its state dict with {}": (
        load("w.pt"),
        lambda: qtool.load_model("torch.nn:Linear(4, 3)", weights="w.pt"),
    ),
    "give a path or a name": (
        lambda: qtool.load_model(3),  # type: ignore[arg-type]  # a number
        lambda: qtool.load_model("tests.mistakes.nets:image_net"),
    ),
    "give one by name": (
        lambda: quantize([IMAGES], observer=99.9),
        lambda: quantize([IMAGES], observer="percentile:99.9"),
    ),
    "give a dict of inputs with a name for each dimension that varies, such as "
    "{'tokens': {1: 'length'}}": (
        lambda: qtool.capture_model(image_net(), IMAGES, {5: {0: "b"}}),  # type: ignore[dict-item]  # a number
        lambda: qtool.capture_model(image_net(), IMAGES, {"input": {0: "b"}}),
    ),
    "add select, op or both": (rule(**{"as": "float"}), rule(select="0", **{"as": "float"})),
    "use at most {} of *, +, ? and {m,n}, and no | or other repetition inside them": (
        lambda: check_regex("re:(a+)+"),
        lambda: check_regex("re:a+"),
    ),
    "give the function itself, not what it returns": (
        lambda: over_data(1.0, [], None),  # type: ignore[arg-type]
        lambda: over_data(lambda model: 1.0, [], None),
    ),
    "add one of {}": (rule(select="0"), rule(select="0", observer="mse")),
}
"""Edit -> (a call that is refused with it, the call after the edit)."""


def _over(batches: list[torch.Tensor], labels: Any) -> None:
    function, *_ = over_data(lambda outputs, known: 1.0, batches, labels)
    function(_Model())


class _Model:
    """Stands for a file whose batches have no labels of their own."""

    def outputs_and_labels(self, batches: Any) -> tuple[Any, None]:
        return batches, None


@pytest.fixture(autouse=True)
def files(folder: Path) -> Iterator[None]:
    np.save("x.npy", IMAGES.numpy())
    Path("table.csv").write_text("a,b\n1,0\n2,1\n")
    Image.new("RGB", (8, 8)).save("a.png")
    torch.save(nn.Linear(4, 3).state_dict(), "w.pt")
    linear = "float[4, 3] w = {0,1,2,3,4,5,6,7,8,9,10,11}"
    graph = f"g (float[n, 4] x) => (float[n, 3] y) <{linear}> {{ y = MatMul (x, w) }}"
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{head} {graph}"), "float.onnx")
    with restored():
        yield


@pytest.mark.parametrize("text", EDITS)
def test_the_next_call_works(text: str) -> None:
    check_edit(CallEdit, text, EDITS[text])
