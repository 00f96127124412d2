"""Recipes: how each part of a model is quantized."""

from qtool.planning.recipe.recipe import (
    ACCURACIES,
    DEFAULT_ACCURACY,
    MODES,
    Recipe,
)
from qtool.planning.recipe.rule import INPUT, Choice, Rule

__all__ = ["ACCURACIES", "DEFAULT_ACCURACY", "INPUT", "MODES", "Choice", "Recipe", "Rule"]
