"""What a model is timed with: a decoder with a prompt and a step."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.evaluation.latency.decoding import phases
from tests.evaluation.language_models import VOCABULARY, texts, write_tagger
from tests.evaluation.onnx_files import linear_file


class Cached(nn.Module):
    """Logits of the mean of all embeddings so far, which are the cache."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 4)
        self.embed.weight.data = torch.randn(VOCABULARY, 4, generator=generator)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        x = torch.cat([past_key_values[:, 0], self.embed(input_ids)], 1)
        mask = attention_mask[:, :, None].float()
        mean = (x * mask).cumsum(1) / mask.cumsum(1).clamp(min=1)
        hidden = mean[:, past_key_values.shape[2] :]
        return {"logits": hidden @ self.embed.weight.t(), "present": x[:, None]}


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    ids = generator.integers(0, VOCABULARY, (2, 5))
    past = generator.standard_normal((2, 1, 3, 4)).astype(np.float32)
    return [ids, np.ones((2, 8), np.int64), past]


def test_a_decoder_with_a_cache_has_a_prompt_and_a_step(tmp_path: Path) -> None:
    batch = [torch.from_numpy(a) for a in arrays()]
    dynamic = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total"},
        "past_key_values": {0: "batch", 2: "past"},
    }
    file = qtool.capture_model(Cached().eval(), batch, dynamic).export_float(tmp_path / "a.onnx")
    prompt, step = phases([file], arrays())
    assert (prompt.name, prompt.tokens, prompt.cached) == ("prompt", 5, 0)
    assert [a.shape for a in prompt.inputs] == [(2, 5), (2, 5), (2, 1, 0, 4)]
    assert (step.name, step.tokens, step.cached) == ("step", 1, 7)
    assert [a.shape for a in step.inputs] == [(2, 1), (2, 8), (2, 1, 7, 4)]
    assert run(session(file), list(step.inputs))[0].shape == (2, 1, VOCABULARY)
    timing = step.time([file, file], seconds=0, least_rounds=2)
    assert (timing.phase, timing.tokens, timing.cached, timing.batch) == ("step", 1, 7, 2)


def test_a_decoder_without_a_cache_has_a_prompt_alone(tmp_path: Path) -> None:
    inputs = [t.numpy() for t in texts()[0].values()]
    (prompt,) = phases([write_tagger(tmp_path / "a.onnx")], inputs)
    assert (prompt.name, prompt.tokens, prompt.cached) == ("prompt", 9, 0)


def test_other_models_have_no_phases(tmp_path: Path) -> None:
    (phase,) = phases([linear_file(tmp_path / "a.onnx", np.eye(3))], [np.ones((4, 3), np.float32)])
    assert (phase.name, phase.tokens) == ("", 0)
