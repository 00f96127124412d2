"""What is left on the disk by an end at any time goes when the work goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from qtool.blockwise.checkpoint import BlockRecord, file_digest, open_checkpoint
from qtool.distributed import Ranks
from qtool.verification import Coverage, Difference, Parity


def test_tensors_that_no_block_reads_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended when the first block was recorded, and what it had read was not removed yet."""
    path, some = tmp_path / "net.onnx", {"x": torch.zeros(2)}
    with open_checkpoint(path, {}, Ranks()) as record, monkeypatch.context() as patch:
        others = record.floats(1), record.own_data, record.scratch
        for values in (*map(record.activations, range(4)), *others):
            values.save(0, some, {})
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        record.block(0).write_bytes(b"")
        digest = file_digest(record.block(0))
        parity = Parity(0, Difference(0.0, 0.0), None, None)
        results = (), parity, None, Coverage("", ())
        record.add(BlockRecord("a block", digest, {}, 0, (), (), *results))
    with open_checkpoint(path, {}, Ranks()) as record:
        assert len(record.finished) == 1
        left = [f.name for f in record.folder.iterdir() if f.is_dir()]
        assert left == [record.activations(1).folder.name]
