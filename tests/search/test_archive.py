"""Results of a search are found again."""

from __future__ import annotations

import hashlib
import json

from qtool.planning.recipe import Recipe
from qtool.search.archive import recipe_key


def test_keys_of_recipes_hold_the_former_names_of_steps() -> None:
    """So that an archive of an earlier version is continued."""
    stored = {"mode": "static", "accuracy": "fast", "recover": ["equalize", "round"], "rules": []}
    key = hashlib.sha256(json.dumps(stored).encode()).hexdigest()[:16]
    for steps in (("equalize", "round"), ("cross-layer-equalization", "gptq")):
        assert recipe_key(Recipe(accuracy="fast", recover=steps)) == key
