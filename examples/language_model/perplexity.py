"""Perplexity of the language model with weights of few bits, on unseen text.

    python -m examples.language_model.perplexity

Each file is written with the cache as inputs and outputs and run in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import qtool
from qtool.backends.onnx.export import write_float
from qtool.core.data import whole_texts
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.measure.output_pass import Reference, measure_arrays
from qtool.frontends.load_model import load_model
from qtool.metrics.built_in import built_in_metrics

HERE = Path(__file__).parent
MODEL, TASK = HERE / "model", "text-generation-with-past"
LENGTH = 96  # tokens of a text
HEAD = {"select": "*lm_head", "as": "int8-weights", "block": 32}
STEPS: dict[str, dict[str, Any]] = {
    "nearest": {"weight_observer": "minmax"},
    "mse": {"weight_observer": "mse"},
    "gptq": {"weight_observer": "mse", "recover": ["gptq"]},
    "learned-scales": {"weight_observer": "mse", "recover": ["learned-scales"]},
}


def batches(name: str, model: Any) -> Any:
    return qtool.load_data(HERE / name, 32, model=model, folder=MODEL, max_length=LENGTH)


def perplexity(path: str | Path, data: Any, reference: str | Path | None = None) -> float:
    """exp of the mean cross entropy of the tokens of each text after its first.

    Args:
        reference: the float file, where a token of `path` depends on later ones, as it does by the
            ranges of a dynamically quantized file: what the outputs are is known from it.
    """
    whole = whole_texts(data)
    flat = [[batch["input_ids"], batch["attention_mask"], *_cache(batch)] for batch in whole]
    first = Reference(Path(reference or path))
    measured = measure_arrays(first, [Path(path)], Feeder(first.session, flat))
    (metric,) = built_in_metrics(measured, labels=None)
    return metric.values[1]


def _cache(batch: Any) -> Iterator[torch.Tensor]:
    """In the order of the file's inputs."""
    for pair in batch["past_key_values"]:
        yield pair["key"]
        yield pair["value"]


def main() -> None:
    model = load_model(MODEL, task=TASK)
    data, seen = batches("evaluation.txt", model), batches("calibration.txt", model)
    captured = qtool.capture_model(model, next(iter(seen)), seen.dynamic)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        plain = write_float(captured.graph, Path(folder) / "float.onnx")
        print(f"float: {perplexity(plain, data):.3f}")
        qtool.quantize(captured, seen, mode="weight-only").export(path)
        print(f"int8:  {perplexity(path, data):.3f}")
        qtool.quantize(captured, seen, mode="dynamic").export(path)
        print(f"int8 dynamic: {perplexity(path, data, plain):.3f}")
        print("4 bits, head and table 8:  nearest      mse    round    learn")
        for scales in ("channel", 128, 32):
            found = []
            for steps in STEPS.values():
                chosen = {"recover": [], **steps}
                by = chosen.pop("weight_observer")
                rules = [{"op": "linear", "block": scales, "weight_observer": by}, HEAD]
                made = qtool.quantize(
                    captured, seen, mode="weight-only-int4", recipe=rules, **chosen
                )
                made.export(path)
                found.append(f"{perplexity(path, data):8.3f}")
            print(f"{scales:>24} {' '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
