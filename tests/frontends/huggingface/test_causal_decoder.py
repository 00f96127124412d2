"""Language models with their cache, from a folder to tokens in ONNX Runtime."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import qtool
from qtool.api.conversion_inputs import example_batch
from qtool.api.data import load_data
from qtool.backends.onnx.export.float_file import write_float
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core.array_batches import whole_texts
from qtool.core.errors import CaptureError
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.huggingface.genai_files import genai_config
from qtool.frontends.load_model import load_model
from tests.frontends.conftest import TEXTS
from tests.frontends.huggingface.test_model_folder import tokenizer

library = pytest.importorskip("transformers")
TASK = "text-generation-with-past"
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # logits that differ
}
PROMPT, STEPS = [3, 1, 4, 1, 5], 50


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    config = library.LlamaConfig(**{**SIZES, **more}, bos_token_id=1, eos_token_id=95)
    return library.LlamaForCausalLM(config).eval()


def qwen() -> Any:
    torch.manual_seed(1)
    config = library.Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)
    return library.Qwen3ForCausalLM(config).eval()


def mistral() -> Any:
    """Every layer sees the last 8 tokens alone."""
    torch.manual_seed(0)
    return library.MistralForCausalLM(library.MistralConfig(**SIZES, sliding_window=8)).eval()


def qwen2() -> Any:
    """Some layers see all tokens, some the last ones."""
    torch.manual_seed(0)
    kinds = ["full_attention", "sliding_attention"]
    config = library.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=8, layer_types=kinds
    )
    return library.Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    llama(num_hidden_layers=1).save_pretrained(made)
    tokenizer(library).save_pretrained(made)
    return made


Run = Callable[[dict[str, np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]


def cache_names(layers: int) -> list[str]:
    return [f"past_key_values.{i}.{what}" for i in range(layers) for what in ("key", "value")]


def greedy(run: Run, layers: int = 2, heads: int = 2, width: int = 8) -> list[int]:
    """Tokens after PROMPT; the cache is empty at first."""
    empty = np.zeros((1, heads, 0, width), np.float32)
    names = cache_names(layers)
    past, ids, found = [empty] * len(names), PROMPT, list[int]()
    while len(found) < STEPS:
        given = {"input_ids": np.array([ids])}
        given["attention_mask"] = np.ones((1, len(ids) + past[0].shape[2]), np.int64)
        logits, *past = run({**given, **dict(zip(names, past, strict=True))})
        ids = [int(logits[0, -1].argmax())]
        found += ids
    return found


def in_runtime(path: Path) -> Run:
    session = ort.InferenceSession(path)
    return lambda given: session.run(None, given)


def in_engine(path: Path) -> Run:
    program = lower(path)

    def run(given: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        tensors = [torch.from_numpy(given[name]) for name in program.inputs]
        return [t.numpy() for t in program(*tensors)]

    return run


def wanted(model: Any) -> list[int]:
    given = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
    found: torch.Tensor = model.generate(torch.tensor([PROMPT]), **given)
    return found[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    "make", [llama, *(pytest.param(m, marks=pytest.mark.matrix) for m in (mistral, qwen, qwen2))]
)
def test_the_float_file_and_the_engine_give_the_tokens_of_their_models(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    model = make()
    decoder = DecoderWithCache(model).eval()
    ids = torch.randint(0, 96, (2, 11), generator=torch.Generator().manual_seed(0))
    batch = decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)
    captured = qtool.capture_model(decoder, batch, DYNAMIC)
    path = write_float(captured.graph, tmp_path / "float.onnx")
    assert greedy(in_runtime(path)) == wanted(model)
    quantized = qtool.quantize(captured, [batch], mode="weight-only-int4", accuracy="fast")
    found = quantized.export(tmp_path / "int4.onnx")
    assert found.passed
    tokens = greedy(in_runtime(tmp_path / "int4.onnx"))
    assert tokens == greedy(in_engine(tmp_path / "int4.onnx"))
    assert len(set(tokens)) > 2
    small = Counter(n.op_type for n in optimised_graph(tmp_path / "int4.onnx").graph.node)
    assert not {"Expand", "ReduceMax"} & set(small)  # keys copied, masks looked at
    assert small["RotaryEmbedding"] == 4  # of queries and keys
    assert small["Shape"] == 2  # how much is in the cache; the places of tokens, once for all
    shapes = {o.name: o.shape for o in ort.InferenceSession(path).get_outputs()}
    assert shapes["logits"] == ["batch_size", "sequence", 96]
    assert shapes["present.1.value"][2] == "past + sequence"


@pytest.mark.parametrize(
    "mode",
    ["static", *(pytest.param(m, marks=pytest.mark.matrix) for m in ("dynamic", "weight-only"))],
)
def test_calibrate_and_convert_with_a_cache(mode: str, tmp_path: Path) -> None:
    decoder = DecoderWithCache(llama(num_hidden_layers=1)).eval()
    ids = torch.randint(0, 96, (2, 11), generator=torch.Generator().manual_seed(0))
    batch = decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)
    steps = {"static": [], "dynamic": ["smooth-quant"], "weight-only": ["gptq"]}[mode]
    calibration = qtool.calibrate(decoder, [batch], mode=mode, dynamic=DYNAMIC, recover=steps)
    assert example_batch(calibration, decoder).size == 1  # what every kernel with a cache takes
    path = tmp_path / "model.onnx"
    qtool.convert(decoder, calibration).export(path, timing=0)
    without_data = qtool.verify(path, samples=4, batch_size=2)
    assert without_data.passed
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    flat = {"past_key_values_0_key": 0.5 + torch.zeros(2, 2, 4, 8)}
    flat |= {n: torch.zeros(2, 2, 4, 8) for n in cache_names(1)[1:]}
    given = [text, batch, batch | {"past_key_values": []} | flat]
    assert qtool.verify(path, given).samples == 6


def test_padding_on_either_side_changes_nothing() -> None:
    decoder = DecoderWithCache(llama()).eval()
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    with torch.no_grad():
        alone = decoder(ids, torch.ones_like(ids), ())["logits"]
        for left, right in ((3, 0), (0, 3)):
            padded = torch.nn.functional.pad(ids, (left, right), value=5)
            mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
            found = decoder(padded, mask, ())["logits"][:, left : left + 5]
            torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_texts_come_with_a_cache(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"a\n{TEXTS[0]}\n{TEXTS[0]}")
    fused = load_model(folder, task=TASK)
    batches = list(load_data(tmp_path / "texts.txt", model=fused, folder=folder))
    assert [len(batch["input_ids"]) for batch in batches] == [1, 1, 1]
    model = load_model(folder, task=TASK, attention="masked")
    data = load_data(tmp_path / "texts.txt", model=model, folder=folder)
    long, short = data
    assert long["past_key_values"][0]["value"].shape == (2, 2, 4, 8)
    assert short["past_key_values"][0]["value"].shape == (1, 2, 4, 8)
    for batch in (long, short):
        assert batch["attention_mask"].shape[1] == batch["input_ids"].shape[1] + 4
        assert set(batch) == set(DYNAMIC)


def test_figures_are_those_of_whole_texts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(TEXTS[0])
    model = load_model(folder, task=TASK, attention="masked")
    data = load_data(tmp_path / "texts.txt", model=model, folder=folder)
    quantized = qtool.quantize(model, data, mode="weight-only", accuracy="fast", dynamic=DYNAMIC)
    verification = quantized.export(tmp_path / "model.onnx", timing=0)
    estimate = verification.fidelity.estimate
    (text,) = whole_texts(data)
    with torch.no_grad():
        real = model(**text)["logits"].double().numpy()
    feed = {name: text[name].numpy() for name in ("input_ids", "attention_mask")}
    feed |= {name: np.zeros((1, 2, 0, 8), np.float32) for name in cache_names(1)}
    error = real - in_runtime(tmp_path / "model.onnx")(feed)[0]
    whole, first = estimate.outputs[0].pooled_db, estimate.first_db
    for rows, found in ((slice(None), whole), (slice(4), first)):
        share = np.square(error[:, rows]).sum() / np.square(real[:, rows]).sum()
        assert found == pytest.approx(-10 * np.log10(share), abs=0.01)
    assert "; first 4 tokens " in str(verification)
    assert "token 5" not in str(verification)


def test_a_layer_with_a_cache_of_another_kind_is_refused() -> None:
    model = llama()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(
        CaptureError, match=r"layers of type linear_attention.*task='text-generation'"
    ):
        DecoderWithCache(model)


def test_what_the_config_says_of_ends() -> None:
    found = genai_config(DecoderWithCache(llama()), "m.onnx")["model"]
    assert (found["bos_token_id"], found["eos_token_id"], found["pad_token_id"]) == (1, 95, 95)
    assert found["decoder"]["num_key_value_heads"] == 2


@pytest.mark.parametrize(
    ("eos", "expected"), [(5, 5), (32000, None), ([5, 32000], [5]), ([32000], None), (None, None)]
)
def test_genai_gets_no_ends_beyond_the_vocabulary(eos: object, expected: object) -> None:
    """Version 0.18 loads no model with one, which a smaller vocabulary makes of a default."""
    model = llama()
    model.config.eos_token_id, model.config.pad_token_id = eos, None
    found = genai_config(DecoderWithCache(model), "m.onnx")["model"]
    assert found.get("eos_token_id") == expected
    assert found.get("pad_token_id") == (expected[0] if isinstance(expected, list) else expected)
