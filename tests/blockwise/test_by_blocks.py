"""Models larger than memory: block by block to the same file, after any end."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import nn

import qtool
from qtool.algorithms.learned_scales import training
from qtool.blockwise import block_conversion, checkpoint, quantize
from qtool.core.errors import CaptureError, FileError
from qtool.frontends.huggingface import meta_init
from qtool.frontends.load_model import load_model
from qtool.frontends.onnx import external_weights

INDEX = "model.safetensors.index.json"
WIDTH = 48


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Residual(nn.Module):
    """A stream of 48 values that layers add to."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 10)
        self.register_buffer("table", torch.linspace(0.5, 1.5, WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.table
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


BLOCK = 45_000  # bytes: a layer


@pytest.fixture(autouse=True, scope="module")
def large() -> Iterator[None]:
    """What is small here counts as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_init, "MIN_META_ELEMENTS", 1000)
        patch.setattr(quantize, "SPLIT", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in two files with an index."""
    torch.manual_seed(0)
    place, held = tmp_path_factory.mktemp("weights"), Residual().state_dict()
    names = {k: f"model-{1 + ('head' in k)}-of-2.safetensors" for k in held}
    for name in set(names.values()):
        save_file({k: v for k, v in held.items() if names[k] == name}, place / name)
    (place / INDEX).write_text(json.dumps({"weight_map": names}))
    return place


def samples(count: int = 8, seed: int = 0) -> list[torch.Tensor]:
    """Of few directions, as activations are."""
    mixed = torch.randn(WIDTH // 4, WIDTH, generator=torch.Generator().manual_seed(7))
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(16, WIDTH // 4, generator=random) @ mixed for _ in range(count)]


def made(folder: Path, path: Path, **options: Any) -> Any:
    given = {"mode": "weight-only-int4", "accuracy": "balanced", "data": samples(), **options}
    with qtool.init_empty_weights():
        model = Residual()
    assert model.layers[0].up.weight.is_meta
    return qtool.quantize_by_blocks(
        folder, given.pop("data"), path, model=model, block=BLOCK, **given
    )


def pooled(file: qtool.QuantizedFile) -> float:
    """The SQNR of the only output, over all samples."""
    estimate = file.verification.fidelity.estimate
    assert estimate is not None
    assert estimate.pooled_db is not None
    return estimate.pooled_db


def filled(folder: Path, layers: int = 3) -> nn.Module:
    model = Residual(layers).eval()
    for file in folder.glob("*.safetensors"):
        model.load_state_dict(load_file(file), strict=False)
    return model


def content(path: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(path.parent.iterdir())}


def outputs(path: Path) -> Any:
    (x,) = samples(1, seed=1)
    return ort.InferenceSession(path).run(None, {"x": x.numpy()})[0]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The result of one run, with rounded weights."""
    path = tmp_path_factory.mktemp("whole") / "net.onnx"
    return made(folder, path), path


UP_FLOAT = {"select": "layers.0.up", "as": "float"}
HEAD_STORED = {"select": "re:he.d", "op": "linear", "as": "int8-weights"}


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([], marks=pytest.mark.matrix, id="alike"),
        pytest.param([UP_FLOAT, HEAD_STORED], id="rules"),
    ],
)
def test_layers_larger_than_a_block_are_split(
    rules: list[dict[str, str]], folder: Path, tmp_path: Path
) -> None:
    with qtool.init_empty_weights():
        model = Residual(1)
    path = tmp_path / "split.onnx"
    options: dict[str, Any] = {"mode": "dynamic", "accuracy": "fast", "recipe": rules}
    found = qtool.quantize_by_blocks(folder, samples(), path, block=17_000, model=model, **options)
    assert len(found.blocks) > 4
    assert not found.notes
    qtool.quantize(filled(folder, 1), samples(), **options).export(tmp_path / "one.onnx")
    assert np.array_equal(outputs(path), outputs(tmp_path / "one.onnx"))
    form = {row.node: row.form for block in found.blocks for row in block.checks.nodes}
    assert form["layers.0.up.1"] == ("float" if rules else "dynamic")


def test_rules_that_select_nothing_are_refused_or_said(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(qtool.PlanError, match=r"rule 2 .* selects no node; the plan lists all"):
        made(folder, path, recipe=[UP_FLOAT, {"select": "layers.0.upp", "as": "float"}])
    assert not list(tmp_path.iterdir())
    found = made(folder, path, recipe=[{"select": "head", "op": "conv", "as": "float"}])
    (note,) = found.notes
    assert (
        note == 'rule 1 of the recipe (select = "head", op = "conv", as = "float") selects no node'
    )
    assert f"note  {note}" in str(found)


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Path:
    """The model as an ONNX file with its weights beside it, once behind a Transpose."""
    model, nodes = filled(folder), []
    stored = {k: v.numpy() for k, v in model.state_dict().items()} | {"table": model.table.numpy()}
    for name in [n for n in stored if n.endswith(("up.weight", "down.weight"))]:
        stored[name] = np.ascontiguousarray(stored[name].T)
    nodes.append("x0 = Mul (x, table)")
    for i in range(3):
        at = f"layers_{i}"
        nodes += [
            f"n{i} = LayerNormalization (x{i}, {at}_norm_weight, {at}_norm_bias)",
            f"u{i} = MatMul (n{i}, {at}_up_weight)",
            f"b{i} = Add (u{i}, {at}_up_bias)",
            f"r{i} = Relu (b{i})",
            f"d{i} = MatMul (r{i}, {at}_down_weight)",
            f"x{i + 1} = Add (x{i}, d{i})",
        ]
    nodes += [
        "turned = Transpose (head_weight)",
        "h = MatMul (x3, turned)",
        "y = Add (h, head_bias)",
    ]
    text = "\n".join(nodes)
    graph = f"agraph (float[batch, {WIDTH}] x) => (float[batch, 10] y) {{ {text} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    arrays = (numpy_helper.from_array(v, k.replace(".", "_")) for k, v in stored.items())
    proto.graph.initializer.extend(arrays)
    apart = {"location": "weights.data", "size_threshold": 0}
    onnx.save(proto, tmp_path / "float.onnx", save_as_external_data=True, **apart)
    return tmp_path / "float.onnx"


@pytest.mark.usefixtures("large")
def test_an_onnx_file_with_its_weights_beside_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, blocks = tmp_path / "one.onnx", tmp_path / "blocks.onnx"
    how = {"mode": "dynamic", "accuracy": "fast"}
    qtool.quantize(load_model(file), samples(), **how).export(one, verify=False)
    monkeypatch.setattr(external_weights, "_MIN_MAPPED", 400)
    asked = list[str]()
    monkeypatch.setattr(
        external_weights.ExternalWeights, "release", lambda _: asked.append("released")
    )
    found = qtool.quantize_by_blocks(file, samples(), blocks, **how, block=BLOCK)
    assert len(found.blocks) == 3
    assert len(asked) == 4  # behind a look at it, and behind each block
    assert np.array_equal(outputs(one), outputs(blocks))


def test_data_that_is_not_the_files_is_named(file: Path, tmp_path: Path) -> None:
    held = (data := file.with_name("weights.data")).read_bytes()
    for left, said in (
        (held[:-4], "weights.data is cut off after .*: '.*' is not whole"),
        (None, "weights.data, .*, is not there"),
    ):
        data.unlink()
        if left is not None:
            data.write_bytes(left)
        with pytest.raises(CaptureError, match=f"float.onnx: .*{said}"):
            qtool.quantize_by_blocks(file, samples(), tmp_path / "x.onnx")
    with pytest.raises(CaptureError, match="is a whole model; omit model and task"):
        made(file, tmp_path / "x.onnx")
    assert not list(tmp_path.glob("x.onnx*"))


def test_steps_that_need_the_whole_network_are_refused_or_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_STEPS", 2)
    path = tmp_path / "net.onnx"
    needed = "'smooth-quant' needs the whole network in memory and does not run block by block"
    with pytest.raises(
        qtool.PlanError, match=f"{needed}; those that do are: .*gptq, learned-scales"
    ):
        made(folder, path, recover=["smooth-quant", "learned-scales"])
    assert not list(tmp_path.iterdir())
    (note,) = made(folder, path, accuracy="best").notes
    assert note == (
        "block by block these steps do not run: cross-layer-equalization, smooth-quant, "
        "output-equalization, sensitive-layers"
    )


def test_the_file_carries_a_test_of_itself(
    folder: Path, whole: tuple[Any, Path], tmp_path: Path
) -> None:
    """What takes more memory than the conversion may has the digest of its bytes alone."""
    test = qtool.verify(whole[1], samples=4).self_test
    assert test is not None
    assert (test.present, test.unmodified, test.passed) == (True, True, True)
    made(folder, tmp_path / "net.onnx", accuracy="fast", memory=0)
    test = qtool.verify(tmp_path / "net.onnx", samples=4).self_test
    assert test is not None
    assert (test.present, test.unmodified) == (False, True)
    assert "more memory than its conversion" in test.missing
    (weights,) = tmp_path.glob("*.data")
    weights.write_bytes(_flip(100)(weights.read_bytes()))
    test = qtool.verify(tmp_path / "net.onnx", samples=4).self_test
    assert test is not None
    assert test.unmodified is False


def test_weights_do_not_make_up_for_biases(tmp_path: Path) -> None:
    """What a layer reads is never below zero, so that its weights could give a bias once more."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 32), nn.Unflatten(1, (2, 4, 4))
    )
    net.extend([nn.ReLU(), nn.Conv2d(2, 3, 3)])
    for layer in (net[0], net[2], net[5]):
        nn.init.constant_(layer.bias, 3.0)
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    nearest, rounded = (
        qtool.quantize_by_blocks(
            tmp_path, samples(), tmp_path / "net.onnx", model=net, mode="static", accuracy=accuracy
        )
        for accuracy in ("fast", "balanced")
    )
    assert rounded.blocks[0].changes
    assert pooled(rounded) > pooled(nearest)


class Fork(nn.Module):
    """Two convolutions read one tensor, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(2, 4, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) + self.narrow(x)


def test_layers_that_read_a_tensor_otherwise_have_moments_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Fork()
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    data = [x.reshape(-1, 2, 4, 6) for x in samples()]
    found = qtool.quantize_by_blocks(
        tmp_path, data, tmp_path / "net.onnx", model=net, mode="static", accuracy="balanced"
    )
    assert found.blocks[0].changes
    assert pooled(found) > 30


@pytest.mark.parametrize(
    "where", ["weights", pytest.param("record", marks=pytest.mark.matrix), "joined"]
)
def test_it_goes_on_to_the_same_bytes(
    folder: Path,
    whole: tuple[Any, Path],
    tmp_path: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ended where the disk is full: in the second block's weights, before its record, at the end;
    with half of what was to be written left behind."""
    calls = 0

    def full(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 2 and where != "joined":
            return real(*given)
        if where == "weights":
            real(*given)
        raise OSError(errno.ENOSPC, "No space left on device")

    owner, name = {
        "weights": (block_conversion, "save_changed_values"),
        "record": (checkpoint.Checkpoint, "add"),
        "joined": (quantize, "move_into_place"),
    }[where]
    real: Any = getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        with pytest.raises(FileError, match="No space left on device; finished blocks are kept"):
            made(folder, tmp_path / "net.onnx")
    assert [f.name for f in tmp_path.iterdir()] == ["net.onnx.blocks"]
    made(folder, tmp_path / "net.onnx")
    assert content(tmp_path / "net.onnx") == content(whole[1])


@pytest.mark.parametrize("where", ["data moved", "model moved", "removed in part"])
def test_a_kill_at_the_end_leaves_what_resumes(
    folder: Path, whole: tuple[Any, Path], interrupted: Path, where: str
) -> None:
    """Between the renames of data and model, behind both, and while the checkpoint is removed."""
    kept, result = interrupted.with_name("net.onnx.blocks"), content(whole[1])
    (data,) = (name for name in result if name.endswith(".data"))
    (kept / data).replace(interrupted.with_name(data))
    if where != "data moved":
        interrupted.write_bytes(result["net.onnx"])
    if where == "removed in part":
        (kept / "start.json").unlink()
        (kept / "block-0000.safetensors").unlink()
    made(folder, interrupted)
    assert content(interrupted) == result


def _flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


DAMAGE = {
    "weight flipped": ("block-0000.safetensors", _flip(900), "block 0 in .* is damaged"),
    "weights cut": ("block-0001.safetensors", _cut, "block 1 in .* is damaged"),
    "record cut": ("block-0001.json", _cut, "block-0001.json is damaged"),
    "record of other values": (
        "block-0001.json",
        lambda data: data.replace(b'"samples": ', b'"samples": 1'),
        "block-0001.json is damaged",
    ),
    "record of another form": (
        "block-0000.json",
        lambda _: b'{"nodes": [5], "sqnr": "x"}',
        "block-0000.json is damaged",
    ),
    "record without an end": ("block-0000.json", lambda _: b"[" * 100_000, "json is damaged"),
    "data": ("data.txt", lambda _: b"\xff", "with other data"),
    "measured inputs": ("measured/*", _flip(200), "checksum differs"),
}


@pytest.fixture(scope="module")
def unfinished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a conversion that ended before its blocks were joined."""
    place = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "move_into_place", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            made(folder, place / "net.onnx")
    return place


@pytest.fixture
def interrupted(unfinished: Path, tmp_path: Path) -> Path:
    """A copy of it for each test; returns the path of its file."""
    shutil.copytree(unfinished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_block_is_no_part_of_the_result(
    name: str, damage: Callable[[bytes], bytes], message: str, folder: Path, interrupted: Path
) -> None:
    (place, *_) = sorted(interrupted.with_name("net.onnx.blocks").glob(name))
    place.write_bytes(damage(place.read_bytes()))
    with pytest.raises(FileError, match=message):
        made(folder, interrupted)
    assert not interrupted.exists()


@pytest.mark.parametrize("name", ["model-1-of-2.safetensors", "model-2-of-2.safetensors"])
def test_a_model_that_changed_is_another_one(
    name: str, folder: Path, whole: tuple[Any, Path], interrupted: Path
) -> None:
    """One bit of its last value; the same bytes with another time are the same model."""
    changed = shutil.copytree(folder, interrupted.with_name("model"))
    data = (changed / name).read_bytes()
    (changed / name).write_bytes(_flip(len(data) - 2)(data))
    with pytest.raises(FileError, match="of a conversion with another model"):
        made(changed, interrupted)
    (changed / name).write_bytes(data)
    os.utime(changed / name, (1, 1))
    made(changed, interrupted)
    shutil.rmtree(changed)
    assert content(interrupted) == content(whole[1])


def test_code_that_changed_is_another_model(
    folder: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "relu", nn.functional.relu6)
    with pytest.raises(FileError, match="of a conversion with another model"):
        made(folder, interrupted)


def test_work_of_others_is_left_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    with monkeypatch.context() as patch:
        patch.setattr(quantize, "convert_block", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            made(folder, path)
    with pytest.raises(FileError, match=r"of a conversion with another choice; .* or delete it"):
        made(folder, path, mode="weight-only")
    with pytest.raises(
        FileError,
        match="of a conversion with other data; resume it with the same data, or delete it",
    ):
        made(folder, path, data=samples(5))
    with (
        checkpoint.open_checkpoint(path, {}),
        pytest.raises(FileError, match="another process uses"),
    ):
        made(folder, path)


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_files_that_are_not_the_models_are_named(folder: Path, tmp_path: Path) -> None:
    named = json.loads((folder / INDEX).read_text())["weight_map"]
    layer = "head.weight"
    missing = copied(folder, tmp_path / "missing")
    (missing / named[layer]).unlink()
    with pytest.raises(CaptureError, match=rf"missing lacks {named[layer]}, which holds weights"):
        made(missing, tmp_path / "x.onnx")
    short = copied(folder, tmp_path / "short")
    (short / named[layer]).write_bytes((folder / named[layer]).read_bytes()[:-1])
    with pytest.raises(CaptureError, match=rf"{named[layer]} is damaged .*; download it again"):
        made(short, tmp_path / "x.onnx")
    other = copied(folder, tmp_path / "other")
    held = load_file(other / named[layer])
    save_file({**held, layer: held[layer][:-1].clone()}, other / named[layer])
    with pytest.raises(
        CaptureError, match=rf"'{layer}' has the shape \[9, 48\], the model expects \[10"
    ):
        made(other, tmp_path / "x.onnx")
    del held[layer]
    save_file(held or {"nothing": torch.zeros(1)}, other / named[layer])
    with pytest.raises(CaptureError, match=rf"lacks '{layer}', which the index lists for it"):
        made(other, tmp_path / "x.onnx")
    assert not list(tmp_path.glob("x.onnx*"))


def test_several_ranks_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "find_group", object)
    with pytest.raises(qtool.RanksError, match="converted by one process; start one process"):
        made(folder, tmp_path)
