"""All cases, by name."""

from tests.operators.feature_maps import FEATURE_MAPS
from tests.operators.moves import MOVES
from tests.operators.sequences import SEQUENCES

CASES = {**FEATURE_MAPS, **MOVES, **SEQUENCES}
