"""In place of the real one: `sitecustomize` follows causes through the handles of asyncio's own loop."""

from asyncio import new_event_loop

__all__ = ["new_event_loop"]
