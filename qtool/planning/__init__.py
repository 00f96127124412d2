"""Planning: which tensors and layers are quantized, in which types, and the reason for each.

`recipe` holds what the user asks for, `targets` what each runtime supports. The planner combines
both with a canonical graph into a `QuantPlan`, which is pure data. Nothing here runs a model.
"""
