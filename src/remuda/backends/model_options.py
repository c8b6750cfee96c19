"""The free `key:value` texts of ModelOptions.Options, read as LocalAI's backends read them. Pure."""

from collections.abc import Iterable, Mapping

OptionValue = bool | int | float | str


def parse_options(texts: Iterable[str]) -> Mapping[str, OptionValue]:
    """Each text split at its first colon; those without are left out, of equal keys the last counts."""
    pairs = (text.partition(":") for text in texts)
    return {key.strip(): option_value(value.strip()) for key, colon, value in pairs if colon}


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
