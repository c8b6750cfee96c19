"""What to type instead of a command that does not exist. Pure.

Some names come from other tools, Ollama above all: whoever types them knows what they want.
"""

from collections.abc import Mapping
from typing import Final

import click

from remuda.core.near_names import near_names

FROM_ELSEWHERE: Final[Mapping[str, str]] = {
    "create": "remuda models add FILE.gguf",
    "generate": "remuda chat MODEL",
    "health": "remuda doctor",
    "info": "remuda nodes",
    "list": "remuda models",
    "ls": "remuda models",
    "ps": "remuda models ps",
    "pull": "remuda models add FILE.gguf (a model), or remuda backends pull NAME (a backend)",
    "rm": "remuda models remove MODEL",
    "run": "remuda chat MODEL",
    "serve": "remuda up",
    "server": "remuda frontend",
    "show": "remuda models (all models), or remuda nodes show NODE",
    "start": "remuda up",
    "status": "remuda nodes",
    "stop": "remuda models unload MODEL",
    "token": "remuda keys create NAME",
    "version": "remuda --version",
}
_SAME_MEANING: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("create", "install"),
    "create": ("add",),
    "del": ("remove", "revoke"),
    "delete": ("remove", "revoke"),
    "info": ("show",),
    "kill": ("cancel", "unload"),
    "ls": ("list",),
    "new": ("create", "add"),
    "ps": ("list",),
    "rm": ("remove", "revoke"),
    "run": ("load",),
    "start": ("load", "resume"),
    "status": ("list",),
    "stop": ("unload", "drain", "cancel"),
    "uninstall": ("remove",),
    "update": ("upgrade",),
}


def suggestion(group: click.Group, path: str, wanted: str) -> str:
    """Commands to type instead of `PATH WANTED`; empty where nothing comes to mind."""
    meant = [name for name in _SAME_MEANING.get(wanted, ()) if name in group.commands]
    if meant:
        return f"{path} {meant[0]}"
    if path == "remuda" and wanted in FROM_ELSEWHERE:
        return FROM_ELSEWHERE[wanted]
    deeper = [
        f"{path} {name} {wanted}"
        for name, command in sorted(group.commands.items())
        if isinstance(command, click.Group) and wanted in command.commands
    ]
    near = [f"{path} {name}" for name in near_names(wanted, group.commands)]
    return ", or ".join((near + deeper)[:3])
