"""A language model with its KV cache, block by block: the file of a conversion in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.blockwise import quantize
from qtool.core.errors import CaptureError
from qtool.frontends.huggingface import meta_init
from qtool.frontends.huggingface.meta_init import load_without_weights
from qtool.frontends.load_model import load_model

TASK = "text-generation-with-past"
LAYERS, HEADS, WIDTH, TOKENS = 2, 1, 32, 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": TOKENS}
    heads = {"num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": HEADS}
    config = library.LlamaConfig(**sizes, **heads, max_position_embeddings=64)
    place = tmp_path_factory.mktemp("llama")
    library.LlamaForCausalLM(config).eval().save_pretrained(place)
    return place


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small here counts as large."""
    monkeypatch.setattr(meta_init, "MIN_META_ELEMENTS", 1000)


def texts() -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(0, TOKENS, (4, 12), generator=random)} for _ in range(2)]


def feed(ids: torch.Tensor, cache: Any, kind: str) -> dict[str, Any]:
    """The inputs of a file for some tokens behind those of a cache."""
    past = 0 if cache is None else cache[0].shape[2]
    empty = np.zeros((len(ids), HEADS, 0, WIDTH), np.float32 if kind == "float" else np.int8)
    cache = [empty] * 2 * LAYERS if cache is None else cache
    names = [f"past_key_values.{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    mask = np.ones((len(ids), past + ids.shape[1]), np.int64)
    return {
        "input_ids": ids.numpy(),
        "attention_mask": mask,
        **dict(zip(names, cache, strict=True)),
    }


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_the_file_of_a_model_in_memory(folder: Path, tmp_path: Path, kind: str) -> None:
    how: dict[str, Any] = {"mode": "weight-only", "accuracy": "fast"}
    found = qtool.quantize_by_blocks(
        folder, texts(), tmp_path / "blocks.onnx", task=TASK, cache=kind, block=100_000, **how
    )
    assert len(found.blocks) > 2
    assert "KV cache" in str(found) or kind == "int8"
    model: Any = load_model(folder, task=TASK)
    data = [
        model.with_cached_prefix(b["input_ids"], torch.ones_like(b["input_ids"]), 4)
        for b in texts()
    ]
    if kind == "int8":
        model.quantize_cache(data)
        data = [
            model.with_cached_prefix(b["input_ids"], torch.ones_like(b["input_ids"]), 4)
            for b in texts()
        ]
    dynamic = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "past + sequence"},
        "past_key_values": {0: "batch", 2: "past"},
    }
    qtool.quantize(model, data, dynamic=dynamic, **how).export(tmp_path / "one.onnx", verify=False)
    one, blocks = (ort.InferenceSession(tmp_path / f"{n}.onnx") for n in ("one", "blocks"))
    assert [i.name for i in one.get_inputs()] == [i.name for i in blocks.get_inputs()]
    assert [o.name for o in one.get_outputs()] == [o.name for o in blocks.get_outputs()]
    ids, cache = texts()[0]["input_ids"], [None, None]
    for new in (ids[:, :9], ids[:, 9:10]):  # a prompt, and one more token
        results = [
            s.run(None, feed(new, c, kind)) for s, c in zip((one, blocks), cache, strict=True)
        ]
        cache = [each[1:] for each in results]
        assert np.allclose(results[0][0], results[1][0], atol=1e-4 if kind == "float" else 0.02)
    graph = onnx.load(tmp_path / "blocks.onnx", load_external_data=False).graph
    assert [n.op_type for n in graph.node].count("GroupQueryAttention") == LAYERS


CUTS = {1 << 30: 1, 101_000: 6}
"""Size of a block -> number of blocks."""


def test_a_file_has_the_same_bytes_for_any_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "split", lambda *_: ({}, set()))
    files, counts = set[bytes](), list[int]()
    how: dict[str, Any] = {"mode": "weight-only-int4", "recover": ["gptq"], "memory": 0}
    how |= {"task": TASK, "cache": "int8"}
    for block in CUTS:
        path = tmp_path / str(block) / "net.onnx"
        path.parent.mkdir()
        found = qtool.quantize_by_blocks(folder, texts(), path, block=block, **how)
        counts.append(len(found.blocks))
        files.add(b"".join(f.read_bytes() for f in sorted(path.parent.iterdir())))
    assert counts == list(CUTS.values())
    assert len(files) == 1


def test_attention_is_tried_with_weights_of_little_memory(folder: Path) -> None:
    model: Any = load_without_weights(folder, TASK)
    assert model.fused
    assert not any(model.model.lm_head.weight.stride())  # expanded again
    assert model.empty_cache[0]["key"].shape == (1, HEADS, 0, WIDTH)
    with pytest.raises(
        CaptureError, match="an int8 KV cache is for the task text-generation-with-past"
    ):
        load_without_weights(folder, "text-generation", cache="int8")


def quantized(folder: Path, place: Path, *more: str) -> Any:
    np.savez(place / "texts.npz", input_ids=texts()[0]["input_ids"].numpy())
    arguments = [str(folder), "--task", TASK, "--data", str(place / "texts.npz"), *more]
    how = ["--mode", "weight-only", "--accuracy", "fast", "-o", str(place / "net.onnx")]
    return CliRunner().invoke(main, ["quantize", *arguments, *how])


def test_a_model_larger_than_the_memory_is_converted_by_blocks(
    folder: Path, tmp_path: Path
) -> None:
    done = quantized(folder, tmp_path, "--memory", "1MiB", "--cache", "int8", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["command"] == "quantize"
    assert printed["fidelity"]["estimate"]["samples"] == 4
    assert "logits" in [o["output"] for o in printed["fidelity"]["estimate"]["outputs"]]
    assert printed["passed"]
    assert [block["samples"] for block in printed["blocks"]] == [4]
    settings = json.loads((tmp_path / "genai_config.json").read_text())
    assert settings["model"]["decoder"]["filename"] == "net.onnx"
    assert (tmp_path / "config.json").is_file()


def perplexity(logits: np.ndarray, ids: torch.Tensor) -> float:
    scores = torch.from_numpy(logits[:, :-1]).double().log_softmax(-1)
    return float((-scores.gather(2, ids[:, 1:, None]).mean()).exp())


@pytest.mark.parametrize("cache", ["float", "int8"])
def test_the_perplexity_on_new_texts_is_that_of_plain_runtimes(
    folder: Path, tmp_path: Path, cache: str
) -> None:
    """Of transformers, and of ONNX Runtime; an int8 cache is in the float model, too."""
    ids = torch.randint(0, TOKENS, (6, 12), generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "new.npz", input_ids=ids.numpy())
    more = ["--eval-data", str(tmp_path / "new.npz"), "--cache", cache, "--memory", "1MiB"]
    done = quantized(folder, tmp_path, *more, "--json")
    assert done.exit_code == 0, done.output
    (metric,) = json.loads(done.stdout)["metrics"]
    assert metric["name"] == "perplexity"
    library = pytest.importorskip("transformers")
    with torch.no_grad():
        exact = library.LlamaForCausalLM.from_pretrained(folder).eval()(ids).logits.numpy()
    session = ort.InferenceSession(tmp_path / "net.onnx")
    own = perplexity(session.run(["logits"], feed(ids, None, cache))[0], ids)
    assert metric["values"][1] == pytest.approx(own, rel=1e-6)
    expected = perplexity(exact, ids)
    assert metric["values"][0] == pytest.approx(expected, rel=1e-5 if cache == "float" else 1e-2)
    assert metric["values"][0] != metric["values"][1]


def test_what_blocks_cannot_do_is_refused_at_once(folder: Path, tmp_path: Path) -> None:
    refused = quantized(folder, tmp_path, "--memory", "1MiB", "--format", "qoperator")
    assert refused.exit_code == 2
    said = "is converted block by block, where --format qoperator is not possible"
    assert said in " ".join(refused.output.split())
    assert not list(tmp_path.glob("net*"))
