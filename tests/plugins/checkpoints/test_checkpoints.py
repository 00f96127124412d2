"""Quantized checkpoints: the codes of a file are those of the folder; damaged ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

import qtool
from qtool.core.errors import CaptureError, PlanError
from qtool.frontends.coded_linear import CodedLinear
from qtool.frontends.huggingface.safetensors_files import stacked_experts
from tests.needs import needs_vnni
from tests.passes.test_experts import mixture
from tests.plugins.checkpoints import folders
from tests.plugins.checkpoints.folders import LAYER, awq, compressed, configure, gptq, scheme, write

pytest.importorskip("transformers")
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
CHANNEL = {"num_bits": 8, "strategy": "channel", "symmetric": True}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
W8A8 = scheme(**CHANNEL, inputs=TOKENS)
IDS = torch.arange(12)[None] % 7 + 3
Folder = tuple[Any, dict[str, Any], dict[str, Any]]
FOLDERS: dict[str, Folder] = {
    "gptq": (gptq, GPTQ, {}),
    "gptq, second layout": (gptq, GPTQ | {"checkpoint_format": "gptq_v2"}, {"less": 0}),
    "gptq, order of activations": (gptq, GPTQ | {"desc_act": True}, {"order": True}),
    "gptq, 8 bits": (gptq, GPTQ | {"bits": 8}, {"bits": 8}),
    "gptq, 2 bits": (gptq, GPTQ | {"bits": 2}, {"bits": 2}),
    "gptq, blocks of half a group": (gptq, GPTQ | {"group_size": 64}, {"group": 64}),
    "awq": (awq, AWQ, {}),
    "compressed-tensors": (compressed, scheme(**INT4), {}),
    "zero points": (compressed, scheme(**INT4 | {"symmetric": False}), {"symmetric": False}),
    "int8 in packed words": (
        compressed,
        scheme(**INT4 | {"num_bits": 8}),
        {"bits": 8},
    ),
}
FILES = (  # forms of loaded codes: the others become one of them
    *("gptq, order of activations", "gptq, 8 bits", "gptq, 2 bits", "compressed-tensors"),
)


def quantized(folder: Path, **options: Any) -> Any:
    """The file of a folder, next to it."""
    chosen = qtool.QuantizeOptions(**options)
    file = qtool.FileOptions(timing=0)
    path = folder.with_suffix(".onnx")
    return qtool.quantize_to_file(folder, [{"input_ids": IDS}], path, chosen, file)


def weights_in(path: Path) -> list[np.ndarray]:
    """Dequantized weights of the linear layers of a file, [outputs, inputs]."""
    graph, weights = onnx.load(path).graph, []
    stored = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            sizes = {a.name: a.i for a in node.attribute}
            tensors = [stored[name] for name in node.input[1:4] if name]
            weights.append(_from_blocks(*tensors, **sizes))
        if node.op_type == "QMoE":
            sizes = {a.name: a.i for a in node.attribute}
            for at in ((2, 3, 11), (5, 6, 12)):
                names = [node.input[i] for i in at if i < len(node.input) and node.input[i]]
                codes, *others = (stored[name] for name in names)
                own = {"N": codes.shape[0] * codes.shape[1], "bits": sizes["expert_weight_bits"]}
                own |= {"K": codes.shape[2] * 8 // own["bits"], "block_size": sizes["block_size"]}
                weights.append(_from_blocks(codes, *others, **own))
    return weights


def _from_blocks(codes: Any, scale: Any, zero: Any = None, **sizes: int) -> np.ndarray:
    outputs, bits = sizes["N"], sizes["bits"]

    def spread(packed: Any) -> np.ndarray:
        parts = [(packed >> at) & (2**bits - 1) for at in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(outputs, -1).astype(np.float32)

    scale = scale.reshape(outputs, -1)
    middle = np.full(scale.shape, 2 ** (bits - 1))
    zero = middle if zero is None else spread(zero.reshape(outputs, -1))
    along = [np.repeat(t[:, : scale.shape[1]], sizes["block_size"], 1) for t in (zero, scale)]
    real: np.ndarray = (spread(codes) - along[0]).astype(np.float32) * along[1]
    return real[:, : sizes["K"]]


def rows(weights: Any) -> set[bytes]:
    """Each row of matrices, sorted: the file may have its inputs in another order, and join
    layers."""
    return {np.sort(row).astype(np.float32).tobytes() for w in weights for row in np.asarray(w)}


def coded_layers(model: Any) -> dict[str, CodedLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, CodedLinear)}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_model_has_the_codes_of_the_folder(name: str, tmp_path: Path) -> None:
    method, config, options = FOLDERS[name]
    real = write(tmp_path / "q", method, config, **options)
    layers = coded_layers(qtool.load_model(tmp_path / "q"))
    assert len(layers) == 7
    for layer, module in layers.items():
        own = module.weight if module.order is None else module.weight[:, module.order.argsort()]
        assert torch.equal(own, real[f"{layer}.weight"]), layer


@pytest.mark.parametrize(
    "name", [FILES[0], *(pytest.param(n, marks=pytest.mark.matrix) for n in FILES[1:])]
)
def test_the_file_has_the_codes_of_the_folder(name: str, tmp_path: Path) -> None:
    method, config, options = FOLDERS[name]
    real = write(tmp_path / "q", method, config, **options)
    file = quantized(tmp_path / "q")
    assert qtool.verify(file.path).passed
    layers = coded_layers(qtool.load_model(tmp_path / "q"))
    assert rows(real[f"{n}.weight"] for n in layers) <= rows(weights_in(file.path))


EXPERTS = [
    ("Qwen3Moe", "zero points"),
    ("Mixtral", "gptq"),
    ("Qwen3Moe", "int8 in packed words"),
    ("Qwen2Moe", "awq"),
]


@pytest.mark.parametrize(("family", "name"), EXPERTS)
def test_stacked_experts_have_the_weights_of_the_folder(
    family: str, name: str, tmp_path: Path
) -> None:
    method, config, options = FOLDERS[name]
    real = write(tmp_path / "q", method, config, mixture(family), **options)
    stored = dict(qtool.load_model(tmp_path / "q").named_parameters())
    for stack, parts in stacked_experts(real).items():
        own = torch.stack([torch.cat([real[part] for part in each]) for each in parts])
        assert torch.equal(stored[stack], own)


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "name"), EXPERTS[:2])
def test_experts_have_the_codes_of_the_folder(family: str, name: str, tmp_path: Path) -> None:
    method, config, options = FOLDERS[name]
    real = write(tmp_path / "q", method, config, mixture(family), **options)
    assert qtool.verify(quantized(tmp_path / "q").path).passed
    experts = [real[n] for n in real if ".experts." in n]
    assert len(experts) == 12
    assert rows(experts) <= rows(weights_in(tmp_path / "q.onnx"))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("float", "some of its experts have codes, and others have none"),
        ("order", "in an order of their own, and experts"),
        ("8 bits", "its experts have codes of several forms"),
    ],
)
def test_experts_of_several_forms_are_refused(form: str, problem: str, tmp_path: Path) -> None:
    folder, layer = tmp_path / "q", "model.layers.0.mlp.experts.1.up_proj"
    eight = {"targets": [f"re:{layer}"], "weights": INT4 | {"num_bits": 8}}
    described = scheme(**INT4)
    described["config_groups"] |= {"group_1": eight} if form == "8 bits" else {}
    method: Any = compressed if form == "8 bits" else gptq
    real = write(folder, method, described if form == "8 bits" else GPTQ, mixture("Qwen3Moe"))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    own = {n: tensors.pop(n) for n in [*tensors] if n.startswith(f"{layer}.")}
    weight = real[f"{layer}.weight"]
    if form == "float":
        own = {f"{layer}.weight": weight}
    elif form == "order":
        own[f"{layer}.g_idx"] = own[f"{layer}.g_idx"].flip(0).contiguous()
    else:
        own = {f"{layer}.{n}": t for n, t in compressed(weight, 8)[0].items()}
    save_file(tensors | own, file)
    with pytest.raises(CaptureError, match=problem):
        qtool.load_model(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "weight-only"},
        pytest.param({"target": "onnxruntime-x86-vnni"}, marks=needs_vnni),
    ],
)
def test_int8_weights_and_inputs(options: dict[str, str], tmp_path: Path) -> None:
    """Where nothing saturates their codes stay."""
    real = write(tmp_path / "q", per_output, W8A8)
    graph = onnx.load(quantized(tmp_path / "q", **options).path).graph
    assert ("MatMulInteger" in {n.op_type for n in graph.node}) == ("target" in options)
    stored = [numpy_helper.to_array(i) for i in graph.initializer]
    found = {c.tobytes() for c in stored if c.dtype == np.int8 and c.ndim == 2}
    assert found == {codes_of(tmp_path / "q", n) for n in real if "proj" in n}


def test_a_target_that_would_widen_scales_refuses_codes(tmp_path: Path) -> None:
    write(tmp_path / "q", per_output, W8A8)
    with pytest.raises(PlanError, match="saturate, and onnxruntime would widen their scale"):
        quantized(tmp_path / "q")


def per_output(weight: torch.Tensor) -> Any:
    return compressed(weight, bits=8, group=weight.shape[1], plain=True)


def codes_of(folder: Path, name: str) -> bytes:
    """Codes as the file stores them, [inputs, outputs]."""
    codes = load_file(folder / "model.safetensors")[name]
    return codes.t().contiguous().numpy().tobytes()


def test_what_is_float_may_be_quantized_and_codes_may_not(tmp_path: Path) -> None:
    write(tmp_path / "q", awq, AWQ)
    captured = qtool.capture_model(qtool.load_model(tmp_path / "q"), {"input_ids": IDS})

    def plan(target: str = "onnxruntime", **options: Any) -> Any:
        names = ("recipe", "mode", "accuracy", "recover")
        recipe = captured.recipe(target, *(options.get(name) for name in names))
        return captured.plan(target, recipe=recipe)

    head = {"select": "lm_head*", "as": "int8-weights"}
    weights = [p.name for p in plan(recipe=[head]) if p.kind.value == "weight"]
    assert len(weights) == len(list(plan())) + 1 == 8
    for options, problem in (
        ({"recipe": [{"select": "*q_proj*", "as": "float"}]}, "has codes of the checkpoint, uint4"),
        ({"recipe": [{"op": "linear", "block": 64}]}, "keeps the codes of the checkpoint: uint4"),
        ({"mode": "static"}, "its mode is weight-only-int4"),
        ({"recover": ("gptq",)}, "no step changes them"),
        ({"accuracy": "best"}, "no step changes them"),
        ({"target": "tensorrt"}, "nothing in this model can run in integers on tensorrt"),
    ):
        with pytest.raises(PlanError, match=problem):
            plan(**options)


def change(part: str, edit: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[..., None]:
    """Edit, or remove, a tensor of a layer."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        new = edit(tensors.pop(f"{LAYER}.{part}"))
        tensors |= {} if new is None else {f"{LAYER}.{part}": new.contiguous()}
        save_file(tensors, folder / "model.safetensors")

    return damage


def config(**entries: Any) -> Callable[..., None]:
    """Change the configuration."""

    def damage(folder: Path) -> None:
        described = json.loads((folder / "config.json").read_text())["quantization_config"]
        configure(folder, described | entries)

    return damage


DAMAGED: list[tuple[str, Callable[[Path], None], str]] = [
    ("gptq", config(group_size=48), "inputs are no multiple of the group size 48"),
    ("gptq", config(bits=8), r"scales is of the shape \[4, 64\], and has to be \[2, 64\]"),
    ("gptq", config(bits=3), "its weights have 3 bits"),
    ("gptq", config(checkpoint_format="marlin"), "the layout marlin"),
    ("gptq", config(dynamic={"+:.*": {"bits": 8}}), "other settings for some layers"),
    ("gptq", change("g_idx", lambda t: t * 0), "its g_idx has groups of other sizes than 32"),
    ("gptq", change("g_idx", lambda t: t - 1), "its g_idx has other groups than 0 to 1"),
    ("gptq", change("scales", lambda t: t.t()), r"has to be \[2, 64\]"),
    ("gptq", change("scales", lambda t: -t), "scales that are negative, Inf, NaN"),
    ("gptq", change("scales", lambda t: t.int()), "its scales is torch.int32"),
    ("gptq", change("qzeros", lambda t: None), "its qzeros is missing"),
    ("gptq", change("qweight", lambda t: t.float()), "its qweight is torch.float32"),
    ("gptq", change("qweight", lambda t: None), "lacks|holds|no weights for"),
    ("awq", config(version="gemv"), "the layout gemv; qtool reads gemm"),
    ("awq", config(group_size=None), "group_size of its quantization_config is None"),
    ("awq", change("qzeros", lambda t: t[:1]), "it has 1 rows of zero points for 2 groups"),
    ("compressed-tensors", config(format="float-quantized"), "the format float-quantized"),
    ("compressed-tensors", config(config_groups={}), "no group of its quantization_config"),
    ("compressed-tensors", config(sparsity_config={"format": "x"}), "are sparse"),
    ("zero points", change("weight_zero_point", lambda t: t[:, :1]), "of 1 groups, not 2"),
    ("compressed-tensors", change("weight_shape", lambda t: t * 2), "its weight_shape is not"),
    ("compressed-tensors", change("weight_packed", lambda t: t[:, :4]), "a row of 4 int32"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    for name in {name for name, *_ in DAMAGED}:
        method, described, options = FOLDERS[name]
        write(root / name, method, described, **options)
    return root


@pytest.mark.parametrize(("name", "damage", "problem"), DAMAGED)
def test_damaged_folders_are_refused(
    name: str, damage: Callable[[Path], None], problem: str, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "q"
    folder.mkdir()
    for file in (sound / name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)
    with pytest.raises(CaptureError, match=problem):
        quantized(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["q"]


def test_a_scale_of_zero_keeps_weights_of_zero(tmp_path: Path) -> None:
    real = write(tmp_path / "q", gptq, GPTQ)
    change("scales", lambda t: t * torch.tensor([[0.0], [1.0]]))(tmp_path / "q")
    (layer,) = (m for n, m in qtool.load_model(tmp_path / "q").named_modules() if n == LAYER)
    expected = real[f"{LAYER}.weight"]
    expected[:, :32] = 0
    assert torch.equal(layer.weight, expected)


def test_the_layouts_are_those_of_the_package() -> None:
    """compressed-tensors decompresses what `folders` wrote to the same weights."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationScheme,
    )

    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for symmetric in (True, False):
        tensors, real = folders.compressed(weight, symmetric=symmetric)
        args = QuantizationArgs(**INT4 | {"symmetric": symmetric})
        described = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry("pack-quantized")
        assert torch.equal(compressor.decompress(tensors, described)["weight"], real)
