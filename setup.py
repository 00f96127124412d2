"""Which packages there are: what setuptools cannot be told in pyproject.toml.

The folder cli/ is installed as qtool.cli (see `package-dir` there), and a folder under another
name is never found by discovery. Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["qtool", "qtool.*"]),
        "qtool.cli",
        *(f"qtool.cli.{name}" for name in find_packages("cli")),
    ]
)
