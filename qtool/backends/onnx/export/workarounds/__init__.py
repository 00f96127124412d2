"""Rewrites of exported graphs that avoid defects of a runtime, one per module.

Each module names the runtime, its operator and version, the defect and the rewrite.
docs/upstream.md has a model that shows each defect.
"""
