"""All cases, by name."""

from __future__ import annotations

from tests.operators.feature_maps import FEATURE_MAPS
from tests.operators.moves import MOVES
from tests.operators.sequences import SEQUENCES

__all__ = ["CASES"]

CASES = {**FEATURE_MAPS, **MOVES, **SEQUENCES}
