"""Search: which layers are quantized how, so that a goal is kept and the model is fast.

An additive model of errors and costs, made of measurements of single tensors and nodes, gives the
whole front at once; a few real evaluations correct it and decide.
"""
