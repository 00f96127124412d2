"""The small sentence encoder: its folder, and what it finds."""

import pytest
import torch

pytest.importorskip("transformers")

from examples.sentence_encoder import retrieval

pytestmark = pytest.mark.matrix


def test_it_finds_most_passages() -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(retrieval.HERE / "model").eval()
    with torch.no_grad():
        found = retrieval.found(lambda **batch: model(**batch).last_hidden_state)
    assert found.shape == (256,)
    assert found.mean() > 0.9
