"""The public Python API: one module per task (convert, evaluate, tune, extend).

A function here validates its arguments, calls the packages below and returns a result object.
Algorithms, graph code and file formats do not belong here.
"""
