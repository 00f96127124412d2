"""Measurements of accuracy: metrics over a dataset, error by layer, sensitivity."""
