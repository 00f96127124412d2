"""Learned scales (LSQ, Esser et al., 2020): scales, weights and biases trained by gradient."""
