"""Recipes: which part of a model is quantized how."""

from qtool.recipe.recipe import ACCURACIES, INPUT, MODES, Choice, Recipe, Rule

__all__ = ["ACCURACIES", "INPUT", "MODES", "Choice", "Recipe", "Rule"]
