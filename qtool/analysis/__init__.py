"""Analysis: what a model costs and gains by being quantized, measured.

Accuracy, latency, node times, layers and sensitivity of models side by side; `qtool.page` shows
what is found here. The modules are imported one by one: some load nothing heavy.
"""
