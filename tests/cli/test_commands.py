"""What the commands write and print on the sample network and on small ones."""

import json
import os

import numpy as np
import onnx
import pytest
import torch

import qtool
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.latency.node_times import NodeTime
from qtool.evaluation.speedup import Speedup
from tests.cli.conftest import Cli
from tests.cli.models import images, transposed

M = "tests.cli.models:"
UP = f"{M}transposed"


@pytest.fixture
def weights(cli: Cli) -> str:
    """A state dict of the small network, so that every call has the same weights."""
    torch.manual_seed(0)
    torch.save(transposed().state_dict(), cli.folder / "up.pt")
    return "up.pt"


# --- goals and exit codes ------------------------------------------------------------------------


def test_a_goal_that_is_missed_exits_with_1(cli: Cli, weights: str) -> None:
    arguments = ("quantize", UP, "--weights", weights, "--data", f"{M}images", "-o", "up.onnx")
    result = cli(*arguments, "--min-coverage", "1.0", "-v", code=1)
    assert (cli.folder / "up.onnx").is_file()
    assert "below --min-coverage 1" in result.stderr
    assert "weights only: 1 (ConvTranspose -> ConvTranspose)" in result.stdout
    result = cli(*arguments, "--min-coverage", "0.4", "--json")
    printed = json.loads(result.stdout)
    assert printed["min_coverage_met"] is True
    assert 0.4 < printed["coverage"]["integer_mac_share"] < 1
    assert "below" not in result.stderr


def test_a_goal_is_not_reached_with_work_that_is_not_known(cli: Cli) -> None:
    inside, outside = ([onnx.helper.make_tensor_value_info(n, 1, ["N", 8])] for n in ("s", "x"))
    condition, number = (
        onnx.helper.make_tensor_value_info(n, k, []) for n, k in (("c", 9), ("i", 7))
    )
    nodes = [onnx.helper.make_node("MatMul", ["s", "w"], ["t"])]
    ends = [condition, onnx.helper.make_tensor_value_info("t", 1, ["N", 8])]
    body = onnx.helper.make_graph(nodes, "body", [number, condition, *inside], ends)
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            onnx.helper.make_node("ReduceMax", ["h"], ["m"], keepdims=0),
            onnx.helper.make_node("Cast", ["m"], ["runs"], to=7),  # values decide
            onnx.helper.make_node("Loop", ["runs", "", "h"], ["l"], "counted", body=body),
            onnx.helper.make_node("MatMul", ["l", "w"], ["y"], "last"),
        ],
        "g",
        outside,
        [onnx.helper.make_tensor_value_info("y", 1, ["N", 8])],
        [onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32) * 1.5, "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), cli.folder / "f.onnx"
    )
    np.save(cli.folder / "x.npy", np.random.default_rng(0).uniform(1, 2, (64, 8)).astype("f"))
    arguments = ("quantize", "f.onnx", "--data", "x.npy", "--seconds", "0", "--accuracy", "fast")
    result = cli(*arguments, "-o", "q.onnx", "--min-coverage", "0.5", code=1)
    figures = "100 % of 128 MACs, 2 of 4 operators, and 1 operator whose work is not known"
    assert figures in result.stdout
    assert "the work of 'counted' in float is not, so that --min-coverage 0.5" in result.stderr
    assert figures in cli("inspect", "q.onnx").stdout
    size, own = ((cli.folder / f).stat().st_size for f in ("q.onnx", "f.onnx"))
    assert f"{size / own:.2f} times the float file's {own} bytes" in result.stdout


# --- calibrate, merge, convert, quantize ----------------------------------------------------------


def test_a_model_that_remembers_its_training_needs_no_data(cli: Cli) -> None:
    given = (f"{M}normed", "--data", "none")
    shown = cli("quantize", *given, "--shape", "2,8,8", "-o", "m.onnx").stdout
    assert (cli.folder / "m.onnx").is_file()
    assert "calibrated without data, on 128 synthetic inputs" in shown
    shown = cli("calibrate", *given, "--shape", "2,8,8", "-o", "m.calib").stdout
    assert "calibrated without data" in shown
    refused = cli("quantize", *given, "-o", "n.onnx", code=2).stderr
    assert "sizes of the model's inputs are not known" in refused
    assert "--shape" in cli("quantize", *given, "--shape", "2,x", "-o", "n.onnx", code=2).stderr


def test_merged_parts_are_the_whole(cli: Cli, weights: str) -> None:
    x = torch.cat(images()).numpy()
    np.save("a.npy", x[:8])
    np.save("b.npy", x[8:])
    np.save("all.npy", x)
    # in batches of 8 wherever they stand, since torch adds up others in another order
    options = ("--weights", weights, "--observer", "percentile", "--batch-size", "8")
    for name in ("a", "b", "all"):
        cli("calibrate", UP, "--data", f"{name}.npy", "-o", f"{name}.calib", *options)
    result = cli("merge", "b.calib", "a.calib", "-o", "merged.calib")
    files = cli.files()
    assert files["merged.calib"] == files["all.calib"] != files["a.calib"]
    assert result.stdout.startswith("merged.calib  merged from 2 calibrations\n  samples  24\n")
    printed = json.loads(cli("merge", "a.calib", "-o", "again.calib", "--json").stdout)
    assert (printed["file"], printed["samples"]) == ("again.calib", 8)


def test_quantize_is_calibrate_and_convert(cli: Cli, weights: str) -> None:
    model, data = (UP, "--weights", weights), ("--data", f"{M}images")
    cli("calibrate", *model, *data, "-o", "up.calib")
    printed = cli("convert", *model, "--calibration", "up.calib", "-o", "a.onnx", "--json").stdout
    assert json.loads(printed)["parity"]["passed"] is True
    cli("quantize", *model, *data, "-o", "b.onnx")
    files = cli.files()
    assert files["a.onnx"] == files["b.onnx"]


def test_a_file_that_is_slower_than_float_is_warned_of(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread, even = Spread(1.0, 1.0, 1.0), Ratio(0.5, 0.5, 0.5, 0.5, 0.5)
    found = Speedup(
        (Timing(1, 1, 9, 1.0, (spread, spread), (even, even)),),
        (NodeTime("head", ("Gemm", "QGemm"), (1.0, 9.0)),),
    )
    monkeypatch.setattr("qtool.api.quantized_file.measure_speedup", lambda *_, **__: found)
    call = ("quantize", UP, "--data", f"{M}images", "-o", "up.onnx")
    result = cli(*call)
    assert "slower than float here (0.50x, batch 1, 1 thread)" in result.stderr
    assert "head: 9 us in QGemm" in result.stderr
    assert json.loads(cli(*call, "--json").stdout)["speed"]["ratio"] == 0.5
    result = cli(*call, "--seconds", "0")
    assert "slower" not in result.output
    assert json.loads(cli(*call, "--seconds", "0", "--json").stdout)["speed"] is None


def test_a_saved_program_is_a_model(cli: Cli) -> None:
    program = torch.export.export(
        transposed().eval(), (images()[0],), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(program, cli.folder / "up.pt2")
    cli("quantize", "up.pt2", "--data", f"{M}images", "-o", "up.onnx")
    assert onnx.load(cli.folder / "up.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param


def test_options_reach_the_calibration(cli: Cli) -> None:
    cli(
        *("calibrate", UP, "--data", f"{M}images", "-o", "up.calib"),
        *("--observer", "percentile:99.5", "--dynamic", "input:0=n", "--dynamic", "input:2"),
    )
    found = qtool.Calibration.load(cli.folder / "up.calib")
    assert str(found.observer) == "percentile p=99.5 bins=2048"
    assert found.inputs[0].shape == ("n", 2, "input_dim2", 6)
    assert found.target == "onnxruntime"


def test_batches_of_pairs_once_through(cli: Cli, weights: str) -> None:
    """A generator of (images, labels): every batch counts, labels are left out."""
    model = (UP, "--weights", weights)
    printed = cli("calibrate", *model, "--data", f"{M}labelled", "-o", "up.calib", "--json").stdout
    assert json.loads(printed)["samples"] == 24
    cli("convert", *model, "--calibration", "up.calib", "-o", "up.onnx")
    printed = cli(
        *("evaluate", "up.onnx", "--model", *model, "--data", f"{M}labelled", "--json"),
        *("--seconds", "0.02"),
    ).stdout
    accuracy = json.loads(printed)["accuracy"]
    assert (accuracy["samples"], accuracy["metrics"]) == (24, [])


# --- progress ------------------------------------------------------------------------------------


def test_threads_wait_without_a_loop_unless_the_user_says_otherwise(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    cli("inspect", "--help")
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    cli("inspect", "--help")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
