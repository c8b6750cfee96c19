"""`remuda servers`: models of servers that run without us, such as an Ollama or a cloud provider."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import ListByDefault, WholeNumber, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line

if TYPE_CHECKING:
    from remuda.wire.servers import ServerView

_SCAN_S: Final = 60.0
_KEY_CHARS_MAX: Final = 2000


@click.group(
    "servers",
    cls=ListByDefault,
    short_help="Use models of servers that already run.",
    epilog=examples(
        "remuda servers scan",
        "remuda servers add http://nas:11434",
        "remuda servers",
        "remuda servers show nas",
        "remuda servers remove nas",
    ),
)
def group() -> None:
    """Servers that run without Remuda: an Ollama, an LM Studio, a vLLM, a cloud provider. Their models are
    called SERVER/MODEL and answer like any other; a model that lists them as `upstreams` in its configuration
    overflows to them when no node can answer. Without a command: list them."""


def _terms(function: Callable[..., None]) -> Callable[..., None]:
    """The options that `add` and `edit` share."""
    for option in reversed(
        (
            click.option(
                "--key",
                metavar="KEY|-",
                help="The key it asks for; - reads it from standard input, so that no shell keeps it.",
            ),
            click.option(
                "--price",
                "prices",
                multiple=True,
                metavar="[MODEL=]READ/WRITTEN",
                help="What a million tokens cost; may be repeated, for single models.",
            ),
            click.option("--free", is_flag=True, help="Its tokens cost nothing."),
            click.option("--budget", metavar="AMOUNT", help="The most that a calendar month may cost."),
            click.option("--parallel", type=WholeNumber(0), help="Send it so many requests at once at most."),
            click.option(
                "--max-tokens",
                type=WholeNumber(0),
                help="Ask for so many tokens at most where a request names no limit.",
            ),
            click.option("--unseen", is_flag=True, help="Though it does not answer now."),
        )
    ):
        function = option(function)
    return function


def _wanted(
    key: str | None,
    prices: Sequence[str],
    free: bool,
    budget: str | None,
    parallel: int | None,
    max_tokens: int | None,
    unseen: bool,
) -> dict[str, object]:
    """The options that were given, as the API takes them."""
    given: dict[str, object | None] = {
        "key": sys.stdin.readline(_KEY_CHARS_MAX).strip() if key == "-" else key,
        "prices": dict(map(_price, prices)) or None,
        "free": free or None,
        "budget": budget,
        "parallel": parallel,
        "max_tokens": max_tokens,
        "unseen": unseen or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _price(text: str) -> tuple[str, str]:
    """Names of models may hold a =, prices do not."""
    model, _, price = text.rpartition("=")
    return model or "*", price


@group.command("list", epilog=examples("remuda servers", "remuda servers list --json"))
@client_command
def list_servers(options: ClientOptions) -> None:
    """List the servers, with whether each answers now."""
    with connect(options) as client:
        answer = client.get("api", "servers")
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.render import console, fitting, show
    from remuda.cli.server_tables import server_columns
    from remuda.wire.servers import ServerViews

    servers = answer.read(ServerViews).servers
    if not servers:
        click.echo("no servers yet; look for some with: remuda servers scan")
        return
    output = console()
    show(output, fitting(server_columns(servers), output))


@group.command("show", epilog=examples("remuda servers show nas"))
@click.argument("name")
@client_command
def show_server(options: ClientOptions, name: str) -> None:
    """Show a server with its models, and with what it has cost this month."""
    with connect(options) as client:
        answer = client.get("api", "servers", name)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.render import console, facts, fitting, show
    from remuda.cli.server_tables import model_columns, server_facts
    from remuda.wire.servers import ServerView

    server, output = answer.read(ServerView), console()
    show(output, facts(server_facts(server)))
    if server.models:
        click.echo()
        show(output, fitting(model_columns(server), output))


@group.command(
    "add",
    epilog=examples(
        "remuda servers add http://nas:11434",
        "remuda servers add http://rack:8000/v1 --name vllm --key -",
        "remuda servers add https://api.example.com/v1 --name cloud --key - --price 2.5/10 --budget 20",
        "remuda servers add https://api.example.com/v1 --name cloud --key - --price small=0.15/0.6 "
        "--price large=2.5/10 --budget 20 --max-tokens 2000",
    ),
)
@click.argument("address", metavar="URL")
@click.option("--name", help="What it is called here; by default a part of its address.")
@click.option(
    "--kind",
    type=click.Choice(["auto", "openai", "ollama", "anthropic"]),
    default="auto",
    show_default=True,
    help="Whose API it speaks.",
)
@_terms
@client_command
def add_server(
    options: ClientOptions,
    address: str,
    name: str | None,
    kind: str,
    key: str | None,
    prices: tuple[str, ...],
    free: bool,
    budget: str | None,
    parallel: int | None,
    max_tokens: int | None,
    unseen: bool,
) -> None:
    """Adopt a server. It is asked for its models, and stays as it is.

    A server outside your own network may cost money, so it needs prices and a monthly budget, or --free. Each
    request reserves the most that it can cost before it is sent; the budget is never exceeded.
    """
    wanted = {
        "url": address,
        "kind": kind,
        **({"name": name} if name else {}),
        **_wanted(key, prices, free, budget, parallel, max_tokens, unseen),
    }
    with connect(options) as client:
        answer = client.call("POST", "api", "servers", body=wanted)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.servers import ServerView

    _tell(answer.read(ServerView), "added")


@group.command(
    "edit",
    epilog=examples(
        "remuda servers edit nas --parallel 2",
        "remuda servers edit cloud --key -",
        "remuda servers edit cloud --budget 40",
        "remuda servers edit nas --address http://nas.local:11434",
    ),
)
@click.argument("name")
@click.option("--address", metavar="URL", help="Where it is now.")
@click.option("--kind", type=click.Choice(["openai", "ollama", "anthropic"]), help="Whose API it speaks.")
@_terms
@client_command
def edit_server(
    options: ClientOptions,
    name: str,
    address: str | None,
    kind: str | None,
    key: str | None,
    prices: tuple[str, ...],
    free: bool,
    budget: str | None,
    parallel: int | None,
    max_tokens: int | None,
    unseen: bool,
) -> None:
    """Change a server. What is not named stays; prices are replaced together, and an empty --key takes the
    key away."""
    wanted = _wanted(key, prices, free, budget, parallel, max_tokens, unseen)
    if address is not None:
        wanted["url"] = address
    if kind is not None:
        wanted["kind"] = kind
    if not wanted:
        raise click.UsageError("say what is to change, such as --budget 40")
    with connect(options) as client:
        answer = client.call("PATCH", "api", "servers", name, body=wanted)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.servers import ServerView

    _tell(answer.read(ServerView), "changed")


@group.command("remove", epilog=examples("remuda servers remove nas"))
@click.argument("name")
@client_command
def remove_server(options: ClientOptions, name: str) -> None:
    """Let a server go: no request is sent there any more. The server itself goes on running."""
    with connect(options) as client:
        answer = client.call("DELETE", "api", "servers", name)
    click.echo(answer.body if options.as_json else one_line(f"{name}: removed"))


@group.command(
    "scan",
    epilog=examples("remuda servers scan", "remuda servers scan nas rack"),
)
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@client_command
def scan_for_servers(options: ClientOptions, hosts: tuple[str, ...]) -> None:
    """Look for servers at their usual ports.

    On the frontend's machine, or on the hosts that are named: Ollama, LM Studio, vLLM, llama-server and
    others. Nothing is adopted by this.
    """
    with connect(options, _SCAN_S) as client:
        answer = client.call("POST", "api", "servers", "scan", body={"hosts": list(hosts)})
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.render import console, fitting, show
    from remuda.cli.server_tables import found_columns
    from remuda.wire.servers import FoundServers

    found = answer.read(FoundServers).servers
    if not found:
        where = ", ".join(hosts) if hosts else "the frontend's machine"
        click.echo(f"no servers found on {one_line(where)}, at the usual ports")
        return
    output = console()
    show(output, fitting(found_columns(found), output))
    new = next((one for one in found if not one.adopted and one.kind), None)
    if new is not None:
        click.echo(f"\nAdopt one with: remuda servers add {one_line(new.url)}")


def _tell(server: "ServerView", done: str) -> None:
    count = len(server.models)
    click.echo(one_line(f"{server.name}: {done}, {server.kind}, {count} model{'' if count == 1 else 's'}"))
    if usable := next((model for model in server.models if not model.reason), None):
        limit = " --max-tokens 500" if usable.price else ""
        click.echo(f"Ask for one with: remuda chat {one_line(usable.name)}{limit}")
    if not server.up:
        click.echo(f"warning: {one_line(server.reason)}", err=True)
