"""Text that may come from a peer, made safe for a terminal. Pure."""


def one_line(text: str) -> str:
    """Without line breaks, escapes and other control characters: each becomes a space."""
    return "".join(char if char.isprintable() else " " for char in text)
