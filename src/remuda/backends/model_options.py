"""The free `key:value` texts of ModelOptions.Options, read as LocalAI's backends read them. Pure."""

from collections.abc import Iterable, Mapping

OptionValue = bool | int | float | str


def parse_options(texts: Iterable[str]) -> Mapping[str, OptionValue]:
    """The options by key, their values as `option_value` understands them."""
    return {key: option_value(text) for key, text in split_options(texts).items()}


def split_options(texts: Iterable[str]) -> Mapping[str, str]:
    """Each text split at its first colon; those without are left out, of equal keys the last counts."""
    pairs = (text.partition(":") for text in texts)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def option_value(text: str) -> OptionValue:
    """A truth value, else a whole number, else a number, else the text as it is."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
