"""Rotations of the residual stream, folded into weights."""
