"""Bringing files to workers that do not fetch for themselves."""
