"""Edges of concat and add, as the plan has them."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
import torch

from qtool.analysis.node_times import profiled
from qtool.analysis.plan_facts import edges, plan_rows
from qtool.analysis.restore import float_twin, is_quantized, restore, restored
from qtool.analysis.sensitivity import sweep
from qtool.data import Batch
from qtool.errors import FileError, VerificationError
from qtool.export import write_float, write_onnx
from qtool.runtimes.onnxruntime import run, session
from tests.analysis.spoiled import chain, images


@pytest.fixture(scope="module")
def quantized():
    return chain()


@pytest.fixture(scope="module")
def files(quantized, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    plain, int8 = folder / "float.onnx", folder / "int8.onnx"
    write_float(quantized.graph, plain)
    write_onnx(quantized.to_onnx(), int8)
    return plain, int8


def test_edges(quantized):
    seen = {e.tensor: e.activation for e in sweep(quantized, [Batch((images(),))]).layers}
    found = edges(quantized, seen)
    assert [(e.node, e.how) for e in found if e.op == "add"] == [
        ("add", "rescaled in the kernel"),
        ("add", "rescaled in the kernel"),
    ]
    joined = [e for e in found if e.op == "concat"]
    assert "copied" in [e.how for e in joined]
    for edge in joined:
        assert (edge.how == "copied") == (edge.input_scale == edge.output_scale)
        assert edge.lost_bits > -0.5
    for edge in found:
        assert all(name in quantized.plan for name in (edge.source, *edge.shared_with))


def test_plan_rows(quantized):
    assert [row.node for row in plan_rows(quantized.plan)] == [d.node for d in quantized.plan.nodes]


def test_restored_model_is_the_one_exported(quantized, files):
    _, int8 = files
    found = restore(int8, quantized.graph, quantized.plan, quantized.sample)
    with torch.no_grad():
        assert torch.equal(found(images()), quantized(images()))


def test_weights_changed_on_the_way_come_from_the_file(tmp_path):
    changed = chain()
    with torch.no_grad():
        for parameter in changed.module.parameters():
            parameter.mul_(0.7)
    write_onnx(changed.to_onnx(), tmp_path / "changed.onnx")
    found = restore(tmp_path / "changed.onnx", changed.graph, changed.plan, changed.sample)
    with torch.no_grad():
        assert torch.allclose(found(images()), changed(images()), atol=1e-5)
        assert not torch.allclose(found(images()), chain()(images()), atol=1e-2)


def test_files_that_cannot_be_restored(quantized, files, tmp_path):
    plain, int8 = files
    plan = replace(quantized.plan, nodes=quantized.plan.nodes[1:])
    with pytest.raises(VerificationError, match="made from another model"):
        restore(int8, quantized.graph, plan, quantized.sample)
    why = restored(plain, quantized.graph, quantized.plan, quantized.sample)
    assert "was not made by qtool" in why
    (tmp_path / "no.onnx").write_text("no")
    with pytest.raises(FileError, match="not a readable ONNX file"):
        restore(tmp_path / "no.onnx", quantized.graph, quantized.plan, quantized.sample)


def test_twin_is_float_with_rounded_weights(quantized, files, tmp_path):
    plain, int8 = files
    onnx.save(float_twin(int8), tmp_path / "twin.onnx")
    assert is_quantized(int8)
    assert not is_quantized(tmp_path / "twin.onnx")
    x = [images(8).numpy()]
    exact, near, far = (run(session(f), x)[0] for f in (plain, tmp_path / "twin.onnx", int8))
    assert 0 < abs(exact - near).max() < abs(exact - far).max()


def test_twin_of_a_float_file(files):
    with pytest.raises(VerificationError, match="holds no QuantizeLinear"):
        float_twin(files[0])


def test_profile_names_the_layers(files, quantized):
    found = {n.name: n for n in profiled(files, [images(4).numpy()], runs=3)}
    assert {"conv.0", "conv.1", "cat", "head"} <= set(found)
    assert found["conv.1"].kernels[1].startswith("QLinearConv")
    assert "Conv" in found["conv.1"].kernels[0]
    assert all(t > 0 for t in found["conv.1"].microseconds)
