"""Where the libraries that load a model's folder look for its ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qtool.core.paths import is_file

GENAI, OPTIMUM, JS, SENTENCES = "genai", "optimum", "transformers.js", "sentence-transformers"
SHARED = "shared"

_STEMS = {
    "": "model",
    "encoder": "encoder_model",
    "decoder": "decoder_model_merged",
    "text": "text_model",
    "vision": "vision_model",
}


@dataclass(frozen=True)
class FolderLayout:
    """How a folder is laid out.

    Attributes:
        consumers: libraries that load it.
        subfolder: folder of the ONNX files; "" for the folder itself.
        with_precision: whether names end in the precision of the weights, as "model_q4.onnx".
    """

    consumers: tuple[str, ...]
    subfolder: str = ""
    with_precision: bool = False

    def path(self, folder: Path, part: str, mode: str) -> Path:
        """Return the path of an ONNX file.

        Args:
            folder: folder of the model.
            part: "encoder" or "decoder", "text" or "vision" for a tower of two; "" for a model of
                one part.
            mode: quantization scheme.
        """
        ending = f"_{precision(mode)}" if self.with_precision else ""
        return folder / self.subfolder / f"{_STEMS[part]}{ending}.onnx"


LAYOUTS: Mapping[str, FolderLayout] = {
    SHARED: FolderLayout((GENAI, OPTIMUM, JS, SENTENCES), "onnx", with_precision=True),
    GENAI: FolderLayout((GENAI,)),
    OPTIMUM: FolderLayout((OPTIMUM,)),
    JS: FolderLayout((JS,), "onnx", with_precision=True),
    SENTENCES: FolderLayout((SENTENCES,), "onnx"),
}
"""Name -> layout; `shared` is one that all of them load."""


def model_folder_of(file: Path) -> Path:
    """Return the folder that an ONNX file belongs to: the one above a subfolder of a layout."""
    subfolders = {layout.subfolder for layout in LAYOUTS.values()} - {""}
    above = file.parent.parent
    inside = file.parent.name in subfolders and is_file(above / "config.json")
    return above if inside else file.parent


_PRECISIONS = {"weight-only-int4": "q4"}  # as transformers.js names them
_OTHER = "quantized"
_DTYPES = {_OTHER: "q8"}
"""Ending of a file's name -> dtype, where they differ."""


def precision(mode: str) -> str:
    """Return the ending of the name of a file with this quantization scheme."""
    return _PRECISIONS.get(mode, _OTHER)


def dtype(mode: str) -> str:
    """Return the dtype by which transformers.js names such a file: "model_q4.onnx" by q4.

    It takes the one of the call, else that of config.json under `transformers.js_config`, else one
    of its own table for the device (@huggingface/transformers 4.3, src/models/session.js).
    """
    return _DTYPES.get(precision(mode), precision(mode))
