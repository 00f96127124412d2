"""Perplexity of the language model with weights of few bits, on unseen text.

    python -m examples.language_model.perplexity

Each file is written with the cache as inputs and outputs and run in ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime

import qtool
from qtool.backends.onnx.export import write_float
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

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
    return load_data(HERE / name, 32, model=model, folder=MODEL, max_length=LENGTH)


def perplexity(path: Path, data: Any) -> float:
    """exp of the mean cross entropy of the tokens that follow those in the cache."""
    session = onnxruntime.InferenceSession(path)
    names = [i.name for i in session.get_inputs()]
    total, count = 0.0, 0
    for batch in data:
        given = dict(zip(names, _arrays(batch), strict=True))
        logits = session.run(["logits"], given)[0].astype(np.float64)[:, :-1]
        ids, mask = batch["input_ids"].numpy()[:, 1:], batch["attention_mask"].numpy()
        kept = mask[:, -ids.shape[1] :] == 1
        most = logits.max(-1, keepdims=True)
        logits = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
        found = np.take_along_axis(logits, ids[..., None], -1)[..., 0]
        total, count = total - float(found[kept].sum()), count + int(kept.sum())
    return math.exp(total / count)


def _arrays(batch: Any) -> Iterator[np.ndarray[Any, Any]]:
    """In the order of the file's inputs."""
    yield batch["input_ids"].numpy()
    yield batch["attention_mask"].numpy()
    for pair in batch["past_key_values"]:
        yield pair["key"].numpy()
        yield pair["value"].numpy()


def main() -> None:
    model = load_model(MODEL, task=TASK)
    data, seen = batches("evaluation.txt", model), batches("calibration.txt", model)
    captured = qtool.capture_model(model, next(iter(seen)), seen.dynamic)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        print(f"float: {perplexity(write_float(captured.graph, path), data):.3f}")
        qtool.quantize(captured, seen, mode="weight-only").export(path)
        print(f"int8:  {perplexity(path, data):.3f}")
        qtool.quantize(captured, seen, mode="dynamic").export(path)
        print(f"int8 dynamic: {perplexity(path, data):.3f}")
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
