"""Evaluation: accuracy, latency and sensitivity of models, and the report that presents them.

`measure` computes accuracy and error, `latency` times models, `report` collects the results and
draws pages. Checks that a file computes what was planned belong to `qtool.verification`.
"""
