"""Ollama's API, beside our own /api."""
