"""Foundations of every other package: value types, errors, the operator table, the float graph.

A module belongs here if it knows nothing of targets, plans, quantization algorithms and runtimes:
`ops` describes operators, `graph` reads, edits and executes graphs, `data` makes batches, and the
single modules hold types, errors, atomic file output, progress and number formats.
"""
