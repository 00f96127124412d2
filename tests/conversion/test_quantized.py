"""The quantized model: callable as the float one, trainable, exported whole or not at all."""

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.api.conversion import calibrate, convert, quantize
from qtool.backends.formats import ONNX
from qtool.backends.onnxruntime import planned_export as module
from qtool.backends.onnxruntime.verification import planned_file
from qtool.conversion import quantized as quantized_module
from qtool.core.errors import VerificationError
from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.verification.estimate import ESTIMATE
from tests.backends.onnx.export.networks import NETWORKS, exported, network, quantized, run, samples
from tests.conversion.corrupt import corrupt


@pytest.mark.parametrize("name", list(NETWORKS))
def test_it_returns_what_the_float_model_returns(name: str) -> None:
    x = samples(name, 16)
    with torch.no_grad():
        expected, found = network(name)(*x), quantized(name)(*x)
    assert pytree.tree_structure(expected) == pytree.tree_structure(found)
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        assert a.shape == b.shape
        noise = (a - b).square().sum()
        assert 10 * torch.log10(a.square().sum() / noise.clamp(min=1e-30)) > 25  # dB


def test_arguments_by_name_work_as_on_the_model() -> None:
    a, b = samples("two_inputs", 3)
    with torch.no_grad():
        assert torch.equal(quantized("two_inputs")(a, b), quantized("two_inputs")(a, b=b))


def test_a_file_of_many_products_is_verified_on_a_few_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = list(samples("residual", 16))
    whole = quantize(network("residual"), data, accuracy="fast")
    macs = sum(d.macs for d in whole.plan.nodes)
    monkeypatch.setattr(quantized_module, "VERIFIED_MACS", 6 * macs)
    few = quantize(network("residual"), data, accuracy="fast")
    monkeypatch.setattr(quantized_module, "VERIFIED_MACS", macs)
    fewest = quantize(network("residual"), data, accuracy="fast")
    sizes = [q.sample.size for q in (whole, few, fewest)]
    assert sizes == [16, 6, quantized_module.VERIFIED_SAMPLES]


# --- export --------------------------------------------------------------------------------------


def test_export_writes_what_it_verified(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    result = quantized("residual").export(path)
    assert result.passed
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes().startswith(exported("residual"))  # its test of itself is behind that
    assert quantized("linear").export(str(path), verify=False) is None
    assert path.read_bytes().startswith(exported("linear"))


def test_exports_of_equal_models_are_equal() -> None:
    data = [samples("linear", 16, seed) for seed in range(4)]
    again = quantize(network("linear"), data, recover=[])
    assert again.to_onnx().SerializeToString() == exported("linear")


def test_a_failed_verification_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("the last good one")
    model = quantize(network("linear"), [samples("linear", 16)], accuracy="fast")  # it stores this
    wrong = corrupt("2.weight.codes", np.negative)
    monkeypatch.setattr(model._export_as(ONNX), "model", lambda *_: wrong)
    with pytest.raises(VerificationError, match=r"model\.onnx was not written"):
        model.export(path)
    assert path.read_text() == "the last good one"
    assert list(tmp_path.iterdir()) == [path]


# --- made once ------------------------------------------------------------------------------------


def test_what_export_found_is_not_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantize(network("linear"), [samples("linear", 16)], accuracy="fast")
    written: list[object] = []
    write = module.to_onnx
    monkeypatch.setattr(module, "to_onnx", lambda *a: written.append(a) or write(*a))
    result = model.export(tmp_path / "model.onnx")
    assert result is not None
    monkeypatch.setattr(planned_file, "audit", lambda _: pytest.fail("audited again"))
    assert model.coverage is result.coverage
    written_bytes = (tmp_path / "model.onnx").read_bytes()
    assert written_bytes.startswith(model.to_onnx().SerializeToString())
    assert model.integer()(*samples("linear", 4))
    assert len(written) == 1


def test_weights_changed_in_any_way_are_written() -> None:
    model = quantize(network("linear"), [samples("linear", 16)], accuracy="fast")
    before = model.to_onnx()
    next(model.module.parameters()).data.neg_()  # which no version counter tells
    assert model.to_onnx() != before


def test_a_model_handed_out_is_the_callers_own() -> None:
    model = quantize(network("linear"), [samples("linear", 16)], accuracy="fast")
    del model.to_onnx().graph.node[:]
    assert model.to_onnx().graph.node


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's, of its own trees
def test_a_deep_copy_of_an_exported_model(tmp_path: Path) -> None:
    """The nodes of its file are chained: copying them as they are would recur without end."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(40)]
    model = quantize(nn.Sequential(*layers).eval(), [torch.randn(16, 4)], accuracy="fast")
    model.export(tmp_path / "a.onnx", verify=False)
    again = copy.deepcopy(model)
    assert again.to_onnx() == model.to_onnx()
    assert str(again) == str(model)


# --- training ------------------------------------------------------------------------------------


def test_training_moves_its_own_weights_alone(tmp_path: Path) -> None:
    user = copy.deepcopy(network("linear"))
    state = {k: v.clone() for k, v in user.state_dict().items()}
    x = samples("linear", 16)[0]
    found = quantize(user, [x], accuracy="fast")
    weights = list(found.module.parameters())
    before, other = [w.detach().clone() for w in weights], found.to_onnx()
    optimizer = torch.optim.SGD(weights, lr=0.1)
    losses = []
    for _ in range(5):
        loss = (found(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(not torch.equal(w, b) for w, b in zip(weights, before, strict=True))
    assert all(torch.equal(v, state[k]) for k, v in user.state_dict().items())
    assert all(p.grad is None for p in user.parameters())
    trained = found.to_onnx()
    assert trained != other  # the export is of the trained weights
    (out,) = run(trained, (x,), optimise=False)
    np.testing.assert_allclose(
        out, found(x).detach().numpy(), atol=found._simulation.output_scales()[0] or 0.02
    )


def test_two_models_of_one_capture_do_not_share_weights() -> None:
    captured = capture_model(network("linear"), samples("linear", 4))
    calibration = calibrate(captured, [samples("linear", 4)])
    one, other = (convert(captured, calibration, accuracy="fast") for _ in range(2))
    mine, theirs = ({p.data_ptr() for p in m.module.parameters()} for m in (one, other))
    assert not mine & theirs


@pytest.mark.parametrize(("size", "batches"), [(1, 64), (2, 32)])
def test_samples_of_small_batches_give_the_estimate(size: int, batches: int) -> None:
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    data = [torch.randn(size, 3, 6, 6, generator=draw) for _ in range(batches)]
    estimate = quantize(model, data, accuracy="fast").fidelity.estimate
    assert estimate.kind == ESTIMATE
    assert estimate.samples >= 8


@pytest.mark.parametrize(("batch", "alone"), [("N", True), ("4", False)])
def test_dynamic_estimates_run_one_by_one_where_the_file_takes_one(
    batch: str, alone: bool, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{batch},8] x) => (float[{batch},4] y)
        {{ h = Gemm (x, w, b) r = Relu (h) y = Gemm (r, v, c) }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in {"w": (8, 16), "b": (16,), "v": (16, 4), "c": (4,)}.items():
        array = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "float.onnx")
    data = torch.from_numpy(random.normal(size=(128, 8)).astype(np.float32))
    made = quantize(load_onnx(tmp_path / "float.onnx"), list(data.split(4)), mode="dynamic")
    estimate = made.export(tmp_path / "int8.onnx", timing=0).fidelity.estimate
    assert estimate.batch == (1 if alone else 4)
    assert (estimate.in_batches is not None) is alone


def test_the_ends_of_the_data_are_not_beyond_its_range(tmp_path: Path) -> None:
    """Of [-2, 2] in 8 bits the zero point is rounded: black pixels lie half a step outside."""
    pixels = torch.randint(0, 256, (96, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    batches = [(part / 255 - 0.5) / 0.25 for part in pixels.split(16)]
    made = quantize(nn.Conv2d(3, 8, 3).eval(), batches, accuracy="fast")
    point = made.parameters["input"]
    assert (point.qtype.qmin - point.zero_point - 0.5) * point.scale > -2  # what float32 says
    assert "beyond their calibrated ranges" not in str(made.export(tmp_path / "m.onnx"))
