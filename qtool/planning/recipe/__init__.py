"""Recipes: which part of a model is quantized how."""

from qtool.planning.recipe.recipe import (
    ACCURACIES,
    INPUT,
    MODES,
    USUAL_ACCURACY,
    Choice,
    Recipe,
    Rule,
)

__all__ = ["ACCURACIES", "INPUT", "MODES", "USUAL_ACCURACY", "Choice", "Recipe", "Rule"]
