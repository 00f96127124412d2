"""The small sentence encoder: its folder, and what it finds."""

import pytest
import torch

pytest.importorskip("transformers")

from examples.sentence_encoder import retrieval

pytestmark = pytest.mark.matrix


def test_the_folder_is_small() -> None:
    files = list((retrieval.HERE / "model").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {f.name for f in files}
    assert sum(f.stat().st_size for f in files) < 2**20


def test_a_mean_is_over_a_texts_own_tokens() -> None:
    states = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
    found = retrieval.pooled(states, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8]]))


def test_pieces_are_of_their_passages() -> None:
    passages = (retrieval.HERE / "evaluation.txt").read_text("utf-8").splitlines()
    found = retrieval.pieces(passages)
    assert len(passages) == 256
    assert all(piece in passage for piece, passage in zip(found, passages, strict=True))
    assert all(len(piece) == retrieval.PIECE for piece in found)


def test_it_finds_most_passages() -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(retrieval.HERE / "model").eval()
    with torch.no_grad():
        found = retrieval.found(lambda **batch: model(**batch).last_hidden_state)
    assert found.shape == (256,)
    assert found.mean() > 0.9
