"""Rewrites of exported graphs that avoid defects of a runtime; each module names the defect."""
