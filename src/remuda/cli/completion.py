"""`remuda completion`: the script that lets a shell complete commands, options and node names."""

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from remuda.cli.commands import examples

_INSTALL: Final = {
    "bash": "remuda completion bash > ~/.local/share/bash-completion/completions/remuda",
    "zsh": 'remuda completion zsh > "${fpath[1]}/_remuda"',
    "fish": "remuda completion fish > ~/.config/fish/completions/remuda.fish",
}


@click.command(
    "completion", short_help="Print a completion script for a shell.", epilog=examples(*_INSTALL.values())
)
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell; its first lines say where to put it."""
    click.echo(script(ctx.find_root().command, shell))


def script(root: click.Command, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None, f"click completes for {shell}"
    # The base class's way: bash's own runs whatever bash it finds, to warn about its version.
    source = ShellComplete.source(kind(root, {}, "remuda", "_REMUDA_COMPLETE"))
    head = "#compdef remuda\n" if shell == "zsh" else ""
    return f"{head}# To install, then open a new shell:\n#   {_INSTALL[shell]}\n{source.removeprefix(head)}"
