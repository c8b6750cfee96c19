"""Backends that come with Remuda: each is a program of its own that serves backend.proto.

They import `core` and `rpc` only, and little else: how soon one answers is mostly how much it imports.
"""
