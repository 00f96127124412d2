"""Recipes: how each part of a model is quantized."""

from qtool.planning.recipe.recipe import (
    ACCURACIES,
    DEFAULT_ACCURACY,
    FLOAT_LAYERS,
    INTEGER_LAYERS,
    MODES,
    OUTPUT_KINDS,
    SLOW_LAYERS,
    Recipe,
    with_output_kinds,
)
from qtool.planning.recipe.rule import INPUT, Choice, Rule

__all__ = [
    "ACCURACIES",
    "DEFAULT_ACCURACY",
    "FLOAT_LAYERS",
    "INPUT",
    "INTEGER_LAYERS",
    "MODES",
    "OUTPUT_KINDS",
    "SLOW_LAYERS",
    "Choice",
    "Recipe",
    "Rule",
    "with_output_kinds",
]
