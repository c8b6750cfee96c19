"""Secrets given as arguments are moved into the environment: any user of a machine may read the arguments
of its processes, only their owner the environment. Standard library only: this runs before everything."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

_CLIENT_SECRETS: Final = {"--api-key": "REMUDA_API_KEY"}
_SERVICE_COMMANDS: Final = ("up", "frontend", "worker", "join")


def hide_secrets_from_argv() -> None:
    """Start this very program again without them, if there are any; returns if there are none."""
    arguments = sys.argv[1:]
    variables = _secret_variables(arguments)
    kept, moved = split_secrets(arguments, variables)
    if not moved:
        return
    # What stands before our own arguments says how Python was started: a script, or `-m remuda`.
    start = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *start, *kept], {**os.environ, **moved})


def split_secrets(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without secret options, and those secrets by variable. `-` is no secret: it asks."""
    kept: list[str] = []
    moved: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":  # Whatever follows is no option.
            return [*kept, argument, *rest], moved
        flag, equals, value = argument.partition("=")
        if flag not in variables or not (equals or rest):
            kept.append(argument)
            continue
        if not equals:
            value = rest.pop(0)
        if value == "-":
            kept += [flag, value]
        else:
            moved[variables[flag]] = value
    return kept, moved


def _secret_variables(arguments: Sequence[str]) -> Mapping[str, str]:
    if not arguments or arguments[0] not in _SERVICE_COMMANDS:
        return _CLIENT_SECRETS
    from remuda.assembly.settings import UpSettings
    from remuda.core.settings import described

    return {item.flag: item.env for item in described(UpSettings) if item.secret}
