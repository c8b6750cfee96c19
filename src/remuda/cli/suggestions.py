"""What a person meant: by a name, an id, or the beginning of an id; and what to type instead of a command
that does not exist. Pure.

Some names come from other tools, Ollama above all: it is known what they mean there.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import click

from remuda.core.errors import Invalid, NotFound
from remuda.core.hints import did_you_mean, near_names

FROM_ELSEWHERE: Final[Mapping[str, str]] = {
    "clients": "remuda keys",
    "create": "remuda models add FILE.gguf",
    "download": "remuda pull NAME",
    "gpu": "remuda doctor",
    "gpus": "remuda doctor",
    "generate": "remuda chat MODEL",
    "health": "remuda doctor",
    "help": "remuda --help",
    "info": "remuda nodes",
    "init": "remuda up",
    "login": "remuda keys create NAME",
    "machines": "remuda nodes",
    "operations": "remuda ops",
    "serve": "remuda up",
    "server": "remuda frontend",
    "settings": "remuda config check",
    "setup": "remuda up",
    "start": "remuda up",
    "status": "remuda nodes",
    "token": "remuda keys create NAME",
    "version": "remuda --version",
    "workers": "remuda nodes",
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


_OF_GROUPS: Final[Mapping[tuple[str, str], str]] = {
    ("remuda models", "info"): "remuda models show MODEL",
    ("remuda models", "pull"): "remuda models install NAME",
    ("remuda models", "download"): "remuda models install NAME",
    ("remuda models", "chat"): "remuda chat MODEL",
    ("remuda models", "run"): "remuda run MODEL",
    ("remuda models", "status"): "remuda models ps",
    ("remuda nodes", "add"): "remuda join-line (what to run on the machine that is to join)",
    ("remuda ops", "clear"): "remuda ops dismiss",
    ("remuda config", "show"): "remuda config check",
    ("remuda config", "list"): "remuda config check",
    ("remuda keys", "show"): "remuda keys (a key itself is shown once, when it is made)",
}


def suggestion(group: click.Group, path: str, wanted: str, at_the_root: Collection[str] = ()) -> str:
    """Commands to type instead of `PATH WANTED`; empty where nothing comes to mind. `at_the_root`: the
    commands of `remuda` itself."""
    if wanted == "help":
        return f"{path} --help"
    if (path, wanted) in _OF_GROUPS:
        return _OF_GROUPS[path, wanted]
    meant = [name for name in _SAME_MEANING.get(wanted, ()) if name in group.commands]
    if meant:
        return f"{path} {meant[0]}"
    if path == "remuda" and wanted in FROM_ELSEWHERE:
        return FROM_ELSEWHERE[wanted]
    if path != "remuda" and wanted in at_the_root:
        return f"remuda {wanted}"
    near = [f"{path} {name}" for name in near_names(wanted, group.commands)]
    return ", or ".join((near + _deeper(group, path, wanted))[:3])


def _deeper(group: click.Group, path: str, wanted: str) -> list[str]:
    """Verbs of the group's own groups, of this name or this meaning."""
    names = (wanted, *_SAME_MEANING.get(wanted, ()))
    return [
        f"{path} {name} {verb}"
        for verb in names
        for name, command in sorted(group.commands.items())
        if isinstance(command, click.Group) and verb in command.commands
    ]


_SHOWN_MAX = 5


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def pick(kind: str, things: Sequence[N], wanted: str) -> N:
    """The one that `wanted` names: a name comes before an id, an id before the beginning of one.

    NotFound with the nearest names; Invalid when several ids begin so.
    """
    exact = [thing for thing in things if thing.name == wanted] or [
        thing for thing in things if thing.id == wanted
    ]
    if exact:
        return exact[0]
    found = [thing for thing in things if wanted and thing.id.startswith(wanted)]
    if not found:
        raise NotFound(f"there is no {kind} {wanted!r}", hint=_hint(kind, things, wanted))
    if len(found) > 1:
        names = _listed([f"{thing.name} ({thing.id})" for thing in found])
        raise Invalid(f"{wanted!r} matches {len(found)} {kind} ids", hint=f"say which: {names}")
    return found[0]


def _hint(kind: str, things: Sequence[Named], wanted: str) -> str:
    names = [thing.name for thing in things]
    if not names:
        return f"there are no {kind}s"
    return did_you_mean(wanted, names, f"there are: {_listed(names)}")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN_MAX
    return ", ".join(words[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
