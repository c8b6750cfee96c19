"""The stream of everything for consoles: what there is, rendered once for all of them, and what changes."""
