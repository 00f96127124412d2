"""All networks of the benchmark, by name."""

from __future__ import annotations

from collections.abc import Mapping

from detection import DETECTION
from from_timm import TIMM
from from_transformers import SERIES, TEXT, VISION
from more_by_name import MORE_BY_NAME
from more_images import MORE_IMAGES
from more_others import MORE_OTHERS
from network import Network
from onnx_files import FILES, FRESH
from own_images import OWN_IMAGES
from own_others import OWN_OTHERS
from own_sequences import OWN_SEQUENCES

__all__ = ["NETWORKS"]

NETWORKS: Mapping[str, Network] = {
    **OWN_IMAGES,
    **OWN_SEQUENCES,
    **OWN_OTHERS,
    **TIMM,
    **TEXT,
    **VISION,
    **SERIES,
    **DETECTION,
    **FRESH,
    **FILES,
    **MORE_IMAGES,
    **MORE_OTHERS,
    **MORE_BY_NAME,
}
