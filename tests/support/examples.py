"""How many inputs Hypothesis makes up, which is for whoever runs the tests to say."""

from hypothesis import settings

_PLAIN = 100


def examples(count: int) -> int:
    """So many with a profile of a hundred, and more or fewer in proportion with another."""
    return max(count * settings().max_examples // _PLAIN, 5)
