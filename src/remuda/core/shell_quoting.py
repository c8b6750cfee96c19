"""Quotes names that peers chose, in commands that people are told to paste into a shell. Pure."""

import shlex


def pasted(name: str) -> str:
    """The name as one word of a command, whatever is in it: quoted where a shell would make more of it, on
    one line, and never taken for an option."""
    plain = "".join(char if char.isprintable() else "?" for char in name)
    return f"-- {shlex.quote(plain)}" if plain.startswith("-") else shlex.quote(plain)
