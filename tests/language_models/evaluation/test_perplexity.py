"""Perplexity of texts: that of transformers, from an empty cache, in each command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qtool
from qtool.api.captured_source import by_input_name, measure_accuracy
from qtool.api.data import load_data
from qtool.core.data import whole_texts
from qtool.frontends.load_model import load_model
from qtool.plugins.search.judge import Judge
from tests.frontends.conftest import TEXTS
from tests.frontends.huggingface.test_causal_decoder import SIZES, TASK
from tests.frontends.huggingface.test_model_folder import tokenizer

library = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    library.LlamaForCausalLM(library.LlamaConfig(**SIZES)).save_pretrained(path)
    tokenizer(library).save_pretrained(path)
    (path / "texts.txt").write_text("\n".join([*TEXTS, "a dog"]))
    return path


def perplexity_of_transformers(folder: Path, texts: list[torch.Tensor]) -> float:
    """exp of the token-weighted loss of transformers, of texts [1, tokens] each by itself."""
    model = library.LlamaForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        losses = [float(model(input_ids=ids, labels=ids).loss) for ids in texts]
    return float(np.exp(np.average(losses, weights=[ids.shape[1] - 1 for ids in texts])))


def test_each_command_has_the_perplexity_of_transformers(folder: Path, tmp_path: Path) -> None:
    words = library.AutoTokenizer.from_pretrained(folder)
    texts = [words(text, return_tensors="pt")["input_ids"] for text in [*TEXTS, "a dog"]]
    expected = perplexity_of_transformers(folder, texts)
    model = load_model(folder, task=TASK)
    data: Any = load_data(folder / "texts.txt", model=model, folder=folder)
    file, plain = tmp_path / "int8.onnx", tmp_path / "float.onnx"
    captured = qtool.capture_model(model, next(iter(data)), data.dynamic)
    captured.export_float(plain)
    quantized = qtool.quantize(captured, data, mode="weight-only", accuracy="fast")
    quantized.export(file, verify=False)

    evaluation = qtool.evaluate(file, captured, data, seconds=0)
    measured = measure_accuracy(quantized.reference, quantized.plan.target, file, data)
    without_model = load_data(folder / "texts.txt", folder=folder)
    options = qtool.ReportOptions(seconds=0.01)
    compared = qtool.compare([plain, file], without_model, options=options)
    named = list(by_input_name(captured.graph, whole_texts(data)))
    score = Judge(plain, named).score(file)
    both = [each.metrics[0].values for each in (evaluation.accuracy, measured, compared.accuracy)]
    both.append(score.metric.values)
    assert evaluation.accuracy.tokens == sum(ids.shape[1] - 1 for ids in texts)
    assert [values[0] for values in both] == pytest.approx([expected] * 4, rel=1e-5)
    assert [values[1] for values in both] == pytest.approx([both[0][1]] * 4, rel=1e-6)
