"""Remuda turns the machines you own into one OpenAI-compatible endpoint."""

from importlib.metadata import version

__version__ = version("remuda")
