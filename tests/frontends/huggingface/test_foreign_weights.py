"""Folders whose weights are no float model."""

from __future__ import annotations

import os
from pathlib import Path

from qtool.frontends.huggingface.foreign_weights import check_float_weights


def test_a_pipe_in_place_of_a_configuration_is_not_read(tmp_path: Path) -> None:
    for name in ("config.json", "quantize_config.json"):
        os.mkfifo(tmp_path / name)
    check_float_weights(tmp_path)
