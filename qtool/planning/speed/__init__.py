"""What operators cost in integers and in float by a stored table, and which layers that makes slow.

Files: `costs.py` has the form of a table, `onnxruntime.py` the table of ONNX Runtime's CPU
provider, `slow_layers.py` the choice.
"""
