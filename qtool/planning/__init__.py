"""Planning: which tensors and layers are quantized, in which types, with the reason for each.

`recipe` holds the user's settings, `targets` what each runtime supports. The planner combines both
with a canonical graph into a `QuantPlan`, which is pure data. Nothing here runs a model.
"""
