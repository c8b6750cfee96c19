"""`remuda keys`: create, list, change and revoke API keys."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import ListByDefault, WholeNumber, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.key_terms import NEVER, ExpiryTime, Quantity
from remuda.cli.output import one_line
from remuda.cli.suggestions import pick

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient
    from remuda.wire.admin import KeyView

_WEIGHT_MAX: Final = 1000


@click.group(
    "keys",
    cls=ListByDefault,
    short_help="Create, list, limit and revoke API keys.",
    epilog=examples(
        "remuda keys",
        "remuda keys create laptop",
        "remuda keys create website --requests-per-minute 60 --tokens-per-day 2M",
        "remuda keys pause website",
        "remuda keys revoke laptop",
    ),
)
def group() -> None:
    """API keys, which a frontend that is open to the network requires. Without a command: list them."""


def _terms(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say what a key may take."""
    quantity = Quantity()
    for option in reversed(
        (
            click.option("--requests-per-minute", type=quantity, help="Most requests in a minute."),
            click.option(
                "--tokens-per-minute", type=quantity, help="Most tokens in a minute, read and written."
            ),
            click.option("--concurrent-requests", type=quantity, help="Most requests at once."),
            click.option("--tokens-per-day", type=quantity, help="Most tokens in a day (UTC)."),
            click.option("--tokens-per-month", type=quantity, help="Most tokens in a calendar month (UTC)."),
            click.option(
                "--expires",
                type=ExpiryTime(),
                help="When it stops working: in 12h, 30d or 8w, on 2027-01-31, or never.",
            ),
            click.option(
                "--weight",
                type=WholeNumber(1, _WEIGHT_MAX),
                help="Its share of replicas while requests of several keys wait. A new key has 1.",
            ),
            click.option("--batch/--no-batch", default=None, help="Give it only what other keys leave idle."),
            click.option(
                "--may-route/--no-may-route",
                default=None,
                help="Let its requests name nodes that they prefer or avoid.",
            ),
        )
    ):
        function = option(function)
    return function


def _wanted(terms: Mapping[str, object]) -> dict[str, object]:
    """The options that were given, as the API takes them."""
    wanted = {name: value for name, value in terms.items() if value is not None}
    expires = wanted.pop("expires", None)
    if expires == NEVER:
        wanted["never_expires"] = True
    elif expires is not None:
        wanted["expires_at"] = expires
    return wanted


@group.command("list", epilog=examples("remuda keys", "remuda keys list --json"))
@client_command
def list_keys(options: ClientOptions) -> None:
    """List the keys. The keys themselves are not stored, only their first characters."""
    with connect(options) as client:
        answer = client.get("api", "keys")
    if options.as_json:
        click.echo(json.dumps({"keys": json.loads(answer.body)}))
        return
    from remuda.cli.key_terms import key_columns
    from remuda.cli.render import console, fitting, show
    from remuda.wire.admin import KeyViews

    keys = answer.read(KeyViews).root
    if not keys:
        click.echo("no keys yet; create one with: remuda keys create NAME")
        return
    output = console()
    show(output, fitting(key_columns(keys), output))


@group.command("show", epilog=examples("remuda keys show website"))
@click.argument("name", metavar="NAME|ID")
@client_command
def show_key(options: ClientOptions, name: str) -> None:
    """Show a key with its limits."""
    with connect(options) as client:
        key = _picked(client, name)
    if options.as_json:
        click.echo(key.model_dump_json())
        return
    from remuda.cli.key_terms import key_facts
    from remuda.cli.render import console, facts, show

    show(console(), facts(key_facts(key)))


@group.command(
    "create",
    epilog=examples(
        "remuda keys create website",
        "remuda keys create laptop --scope admin",
        "remuda keys create grafana --scope read",
        "remuda keys create notebook --model qwen --model bge",
        "remuda keys create guest --expires 30d --tokens-per-day 200k --concurrent-requests 2",
        "remuda keys create nightly --batch",
    ),
)
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(["inference", "read", "admin"]),
    default="inference",
    show_default=True,
    help="inference: only use models; read: see what an admin sees, change nothing; admin: everything.",
)
@click.option(
    "--model", "models", multiple=True, metavar="MODEL", help="Allow only this model; may be repeated."
)
@_terms
@client_command
def create_key(
    options: ClientOptions, /, name: str, scope: str, models: tuple[str, ...], **terms: object
) -> None:
    """Create a key. It is shown only once."""
    if scope != "inference" and models:
        raise click.UsageError(f"a key of the scope {scope} is for no single model; leave out one of the two")
    given = _wanted(terms)
    given.pop("never_expires", None)
    wanted = {"name": name, "scope": scope, "models": list(models), **given}
    with connect(options) as client:
        answer = client.call("POST", "api", "keys", body=wanted)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.admin import KeyView

    made = answer.read(KeyView)
    click.echo(made.key)
    _warn(made.warnings)
    click.echo("Save it: it cannot be shown again. Use it as REMUDA_API_KEY or --api-key.", err=True)


@group.command(
    "edit",
    epilog=examples(
        "remuda keys edit website --requests-per-minute 120",
        "remuda keys edit website --tokens-per-day none --expires never",
        "remuda keys edit notebook --model qwen",
        "remuda keys edit notebook --all-models",
    ),
)
@click.argument("name", metavar="NAME|ID")
@click.option(
    "--model", "models", multiple=True, metavar="MODEL", help="Allow only this model; may be repeated."
)
@click.option("--all-models", is_flag=True, help="Allow every model.")
@_terms
@client_command
def edit_key(
    options: ClientOptions, /, name: str, models: tuple[str, ...], all_models: bool, **terms: object
) -> None:
    """Change what a key may take, from now on. What is not named stays; `none` takes a limit away."""
    if models and all_models:
        raise click.UsageError("--model and --all-models exclude each other")
    wanted = _wanted(terms)
    if models or all_models:
        wanted["models"] = list(models)
    if not wanted:
        raise click.UsageError("say what is to change, such as --requests-per-minute 60")
    _change(options, name, wanted, "changed")


@group.command("pause", epilog=examples("remuda keys pause website"))
@click.argument("name", metavar="NAME|ID")
@client_command
def pause_key(options: ClientOptions, name: str) -> None:
    """Pause a key: it stops working until it is resumed."""
    _change(options, name, {"paused": True}, "paused; it works again after: remuda keys resume {name}")


@group.command("resume", epilog=examples("remuda keys resume website"))
@click.argument("name", metavar="NAME|ID")
@client_command
def resume_key(options: ClientOptions, name: str) -> None:
    """Resume a key that was paused."""
    _change(options, name, {"paused": False}, "resumed")


@group.command("revoke", epilog=examples("remuda keys revoke laptop"))
@click.argument("name", metavar="NAME|ID")
@client_command
def revoke_key(options: ClientOptions, name: str) -> None:
    """Revoke a key: it stops working at once, for good."""
    with connect(options) as client:
        key = _picked(client, name)
        answer = client.call("DELETE", "api", "keys", key.id)
    click.echo(answer.body if options.as_json else one_line(f"{key.name}: revoked"))


def _change(options: ClientOptions, name: str, wanted: Mapping[str, object], done: str) -> None:
    with connect(options) as client:
        key = _picked(client, name)
        answer = client.call("PATCH", "api", "keys", key.id, body=dict(wanted))
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.admin import KeyView

    click.echo(one_line(f"{key.name}: {done.format(name=key.name)}"))
    changed = answer.read(KeyView)
    if changed.state == "expired":
        click.echo("warning: it has expired, and opens nothing", err=True)
    _warn(changed.warnings)


def _picked(client: "AdminClient", name: str) -> "KeyView":
    from remuda.wire.admin import KeyViews

    return pick("key", client.get("api", "keys").read(KeyViews).root, name)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {one_line(warning)}", err=True)
