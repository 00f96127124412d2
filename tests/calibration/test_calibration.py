"""Calibration: the same statistics whatever the split, no trace on the model, safe files."""

import copy
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from qtool.api.conversion import calibrate, convert
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import modules_to_observe, observer_hooks
from qtool.core.errors import CalibrationError, DataError
from qtool.frontends.captured_model import Captured, capture_model
from qtool.planning.fake_quantize import insert_points, quant_points
from tests.backends.onnx.export.networks import network, samples

EXACT = ["minmax", "percentile", "percentile:99", "mse"]
Split = Callable[[str, Path], Calibration]


class Exact(nn.Module):
    """A network whose every sum is exact in float32, in any order.

    Its weights and inputs are small multiples of 1/4. Of ordinary ones torch adds up the products
    in an order that depends on the size of the batch, so that the float model itself differs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.shortcut, self.head = nn.Conv2d(4, 6, 1), nn.Linear(6, 3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randint(-2, 3, p.shape) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.conv2(self.conv1(x).relu()) + self.shortcut(x)).relu()
        return self.head(y.mean((2, 3)))


@functools.cache
def exact() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Exact().eval()


@functools.cache
def captured() -> Captured:
    return capture_model(exact(), images()[:2])


@functools.cache
def images() -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.randn(512, 4, 8, 8).mul(5).round().div(4)


def halves(observer: str) -> tuple[Calibration, Calibration]:
    a, b = images().split(256)
    return (
        calibrate(captured(), list(a.split(32)), observer=observer),
        calibrate(captured(), list(b.split(32)), observer=observer),
    )


@functools.cache
def at_once(observer: str) -> Calibration:
    return calibrate(captured(), [images()], observer=observer)


def unevenly(observer: str, folder: Path) -> Calibration:
    return calibrate(captured(), iter(images().split([1, 300, 11, 200])), observer=observer)


def merged(observer: str, folder: Path) -> Calibration:
    a, b = halves(observer)
    return a.merge(b)


def merged_from_files(observer: str, folder: Path) -> Calibration:
    for part, name in zip(halves(observer), ("b", "a"), strict=True):
        part.save(folder / name)
    return Calibration.load(folder / "a").merge(Calibration.load(folder / "b"))


def file_of(calibration: Calibration, folder: Path) -> bytes:
    calibration.save(folder / "saved.calib")
    return (folder / "saved.calib").read_bytes()


# --- the same file, however the data is cut ------------------------------------------------------


@pytest.mark.parametrize("split", [unevenly, merged_from_files])
@pytest.mark.parametrize("observer", EXACT)
def test_any_split_gives_the_same_file(observer: str, split: Split, tmp_path: Path) -> None:
    found = split(observer, tmp_path)
    assert found.samples == 512
    assert file_of(found, tmp_path) == file_of(at_once(observer), tmp_path)


def test_moving_averages_merge_up_to_rounding(tmp_path: Path) -> None:
    whole = calibrate(captured(), images().split(32), observer="moving_average")
    parts = merged("moving_average", tmp_path)
    for name, statistic in whole.statistics.items():
        for key, array in statistic.state().items():
            np.testing.assert_allclose(parts.statistics[name].state()[key], array, rtol=1e-12)
    at_once_ranges = at_once("moving_average").ranges()
    assert at_once_ranges != whole.ranges()  # it does depend on the batches


def test_merging_leaves_both_sides_as_they_were(tmp_path: Path) -> None:
    a, b = halves("percentile")
    before = file_of(a, tmp_path), file_of(b, tmp_path)
    a.merge(b)
    assert (file_of(a, tmp_path), file_of(b, tmp_path)) == before


def test_what_is_observed_is_the_float_model() -> None:
    ranges = {name: (low, high) for name, low, high in at_once("minmax").ranges()}
    x = images()
    assert ranges["x"] == (x.min().item(), x.max().item())
    with torch.inference_mode():
        inner = exact().conv1(x).relu()
    assert ranges["relu"] == (0, inner.max().item())


# --- no trace ------------------------------------------------------------------------------------


def hooks_of(module: nn.Module) -> int:
    stores = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, s)) for m in module.modules() for s in stores)


def broken(batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from batches
    raise RuntimeError("the disk is gone")


def bad_batch(batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from batches
    yield torch.full_like(batches[0], torch.nan)


@pytest.mark.parametrize(
    ("data", "error"), [(list, None), (broken, DataError), (bad_batch, DataError)]
)
def test_the_users_model_is_untouched(data: Callable, error: type[Exception] | None) -> None:
    model = copy.deepcopy(network("residual"))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    modules = [name for name, _ in model.named_modules()]
    x = samples("residual", 8, seed=9)[0]
    with torch.no_grad():
        before = model(x)
    if error is None:
        calibrate(model, data([x, x]))
    else:
        with pytest.raises(error):
            calibrate(model, data([x, x]))
    with torch.no_grad():
        assert torch.equal(model(x), before)
    assert hooks_of(model) == 0
    assert [name for name, _ in model.named_modules()] == modules
    assert not model.training
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[k], v) for k, v in state.items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_no_hook_outlives_the_context(fails: bool) -> None:
    plan = captured().plan()
    graph, _ = captured().for_target(plan.target)
    prepared = insert_points(graph.module, plan)
    x = images()[:4]
    before = prepared(x)
    with (
        pytest.raises(KeyboardInterrupt) if fails else nullcontext(),
        observer_hooks(modules_to_observe(prepared, plan, ())) as statistics,
    ):
        assert hooks_of(prepared) == len(plan.observed()) == len(statistics) > 0
        prepared(x)
        if fails:
            raise KeyboardInterrupt
    assert hooks_of(prepared) == 0
    assert all(p.params is None for p in quant_points(prepared).values())
    assert torch.equal(prepared(x), before)
    assert not any(s.empty for s in statistics.values())


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("observer", [*EXACT, "moving_average:0.5"])
def test_a_file_holds_everything(observer: str, tmp_path: Path) -> None:
    made = calibrate(captured(), [images()[:8]], observer=observer)
    data = file_of(made, tmp_path)
    read = Calibration.load(tmp_path / "saved.calib")
    assert file_of(read, tmp_path) == data
    for field in ("fingerprint", "target", "inputs", "samples", "specs", "observer", "recipe"):
        assert getattr(read, field) == getattr(made, field)
    assert read.ranges() == made.ranges()
    assert read.merge(made).samples == 16


@functools.cache
def small() -> Calibration:
    return calibrate(captured(), [images()[:4]])


def saved(folder: Path) -> Path:
    path = folder / "model.calib"
    small().save(path)
    return path


def rewrite(path: Path, change: Callable[[dict, dict], None]) -> None:
    """Changes the header and the arrays of a calibration file."""
    with safetensors.safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["qtool_calibration"])
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  # not a dict
    change(header, arrays)
    metadata = {"qtool_calibration": json.dumps(header)}
    path.write_bytes(safetensors.numpy.save(arrays, metadata))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def truncate_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def foreign_safetensors(path: Path) -> None:
    path.write_bytes(safetensors.numpy.save({"weight": np.zeros(3, np.float32)}))


def text(path: Path) -> None:
    path.write_text("x,low,high\n")


def newer(path: Path) -> None:
    rewrite(path, lambda header, arrays: header.update(schema=header["schema"] + 1))


def no_schema(path: Path) -> None:
    rewrite(path, lambda header, arrays: header.pop("schema"))


def no_samples(path: Path) -> None:
    rewrite(path, lambda header, arrays: header.pop("samples"))


def lost_array(path: Path) -> None:
    rewrite(path, lambda header, arrays: arrays.pop("x/min"))


def nan_in_array(path: Path) -> None:
    rewrite(path, lambda header, arrays: arrays.update({"x/max": np.full(1, np.nan, np.float32)}))


def unknown_observer(path: Path) -> None:
    rewrite(path, lambda header, arrays: header["observers"].update(x=["oracle", {}]))


def header_of_another_type(path: Path) -> None:
    metadata = {"qtool_calibration": "[1, 2]"}
    path.write_bytes(safetensors.numpy.save({}, metadata))


def header_that_is_no_json(path: Path) -> None:
    path.write_bytes(safetensors.numpy.save({}, {"qtool_calibration": "{"}))


BROKEN: dict[Callable[[Path], None], str] = {
    truncate: "or a damaged one",
    truncate_to_nothing: "is empty",
    text: "is a text",
    foreign_safetensors: "a safetensors file, but not a calibration of qtool",
    newer: r"schema \d, this qtool reads",
    no_schema: "schema None, this qtool reads",
    no_samples: "calibrate again",
    lost_array: "damaged",
    nan_in_array: "damaged",
    unknown_observer: "unknown observer 'oracle'",
    header_of_another_type: "calibrate again",
    header_that_is_no_json: "calibrate again",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda f: f.__name__)
def test_a_broken_file_is_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = saved(tmp_path)
    change(path)
    with pytest.raises(CalibrationError, match=BROKEN[change]) as caught:
        Calibration.load(path)
    assert str(path) in str(caught.value)


def test_a_rewritten_file_is_fine_by_itself(tmp_path: Path) -> None:
    path = saved(tmp_path)
    rewrite(path, lambda header, arrays: None)
    assert Calibration.load(path).samples == 4


# --- whose calibration ---------------------------------------------------------------------------


def test_the_same_weights_in_another_object_are_the_same_model() -> None:
    assert convert(copy.deepcopy(exact()), small(), accuracy="fast").parameters


def test_other_observers_do_not_merge() -> None:
    one, other = (calibrate(captured(), [images()[:4]], observer=o) for o in ("minmax", "mse"))
    with pytest.raises(CalibrationError, match="different observers"):
        one.merge(other)


@pytest.mark.parametrize("part", range(5))
def test_a_bit_that_flipped_in_the_statistics_is_noticed(part: int, tmp_path: Path) -> None:
    data = bytearray(small().to_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[header + (len(data) - header) * (2 * part + 1) // 10] ^= 4
    (tmp_path / "flipped.calib").write_bytes(data)
    with pytest.raises(CalibrationError, match="damaged statistics; calibrate again"):
        Calibration.load(tmp_path / "flipped.calib")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samples", float("inf")),
        ("samples", -1),
        ("samples", "4"),
        ("target", []),
        ("fingerprint", None),
        ("inputs", [["x", "load", [4, 4]]]),
        ("inputs", [["x", "float32", [-1, 4]]]),
        ("inputs", [["x", "float32", [2**60, 2**60]]]),
        ("inputs", [["x", "float32", [4.5]]]),
        ("inputs", [[3, "float32", [4]]]),
        ("inputs", [["x", ["float32"], [4]]]),
        ("inputs", []),
        ("observer", [5, {}]),
        ("observer", [["minmax"], {}]),
        ("observer", ["percentile", {"p": [99]}]),
        ("inputs", [["x", "float32", [4, 4]]] * 2),
    ],
)
def test_a_header_that_makes_no_sense(key: str, value: object, tmp_path: Path) -> None:
    file = saved(tmp_path)
    rewrite(file, lambda header, arrays: header.update({key: value}))
    with pytest.raises(CalibrationError, match=r"damaged calibration .*calibrate again"):
        Calibration.load(file)


def test_samples_that_lie_channel_by_channel_are_saved(tmp_path: Path) -> None:
    data = [images()[:32].to(memory_format=torch.channels_last)]
    found = calibrate(captured(), data, accuracy="balanced")
    assert len(found.kept_samples)
    found.save(tmp_path / "a.calib")
    assert Calibration.load(tmp_path / "a.calib").to_bytes() == found.to_bytes()


class Unrelated(nn.Module):
    """Two inputs whose numbers of samples are not compared anywhere in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), mask * 2


def test_samples_are_counted_not_batches() -> None:
    batches = [(torch.randn(16, 4), torch.randn(16, 3)) for _ in range(2)]
    dynamic = {"x": {0: "batch"}, "mask": {0: "batch"}}
    calibration = calibrate(Unrelated().eval(), batches, recover=["gptq"], dynamic=dynamic)
    assert len(calibration.kept_samples) == 32


@pytest.mark.parametrize("size", [1, 2])
def test_small_batches_are_samples_too(size: int) -> None:
    """The captured example has two samples then, and each sample is used alone."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    calibration = calibrate(network, list(torch.randn(32, 4).split(size)), recover=["gptq"])
    assert len(calibration.kept_samples) == 32
    notes = convert(network, calibration, accuracy="fast").notes
    assert not [note for note in notes if "the calibration kept" in note]


def test_a_later_batch_of_sizes_that_the_model_does_not_take() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.zeros(8, 4)), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.table[: x.shape[1]])

    batches = [torch.ones(2, 5, 4), torch.ones(2, 9, 4)]
    model = capture_model(Positions().eval(), batches[0], dynamic={"x": {1: "length"}})
    with pytest.raises(DataError, match=r"^batch 1, the model does not run on it: RuntimeError: "):
        calibrate(model, batches)
