"""What operators cost in integers and in float by a stored table, and which layers that makes slow.

Files: `costs.py` has the form of a table, of which targets have one; `slow_layers.py` the choice.
"""
