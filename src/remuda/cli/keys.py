"""`remuda keys`: create, list and revoke API keys."""

import json

import click

from remuda.cli.commands import ListByDefault, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line
from remuda.cli.suggestions import pick


@click.group(
    "keys",
    cls=ListByDefault,
    short_help="Create, list and revoke API keys.",
    epilog=examples("remuda keys", "remuda keys create laptop", "remuda keys revoke laptop"),
)
def group() -> None:
    """API keys, which a frontend that is open to the network requires. Without a command: list them."""


@group.command("list", epilog=examples("remuda keys", "remuda keys list --json"))
@client_command
def list_keys(options: ClientOptions) -> None:
    """List active keys. The keys themselves are not stored, only their first characters."""
    with connect(options) as client:
        answer = client.get("api", "keys")
    if options.as_json:
        click.echo(json.dumps({"keys": json.loads(answer.body)}))
        return
    from remuda.cli.render import Column, console, fitting, local, show
    from remuda.wire.admin import KeyViews

    keys = answer.read(KeyViews).root
    if not keys:
        click.echo("no keys yet; create one with: remuda keys create NAME")
        return
    output = console()
    columns = [
        Column("NAME", [key.name for key in keys]),
        Column("SCOPE", [key.scope for key in keys]),
        Column("MODELS", [", ".join(key.models) or "all" for key in keys], needed=1),
        Column("BEGINS", [key.hint for key in keys]),
        Column("MADE", [local(key.created_at) for key in keys], needed=2),
        Column("ID", [key.id for key in keys], needed=3),
    ]
    show(output, fitting(columns, output))


@group.command(
    "create",
    epilog=examples(
        "remuda keys create website",
        "remuda keys create laptop --scope admin",
        "remuda keys create grafana --scope read",
        "remuda keys create notebook --model qwen --model bge",
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
@client_command
def create_key(options: ClientOptions, name: str, scope: str, models: tuple[str, ...]) -> None:
    """Create a key. It is shown only once."""
    if scope != "inference" and models:
        raise click.UsageError(f"a key of the scope {scope} is for no single model; leave out one of the two")
    wanted = {"name": name, "scope": scope, "models": list(models)}
    with connect(options) as client:
        answer = client.call("POST", "api", "keys", body=wanted)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.admin import KeyView

    made = answer.read(KeyView)
    click.echo(made.key)
    for warning in made.warnings:
        click.echo(f"warning: {one_line(warning)}", err=True)
    click.echo("Save it: it cannot be shown again. Use it as REMUDA_API_KEY or --api-key.", err=True)


@group.command("revoke", epilog=examples("remuda keys revoke laptop"))
@click.argument("name", metavar="NAME|ID")
@client_command
def revoke_key(options: ClientOptions, name: str) -> None:
    """Revoke a key: it stops working at once."""
    from remuda.wire.admin import KeyViews

    with connect(options) as client:
        key = pick("key", client.get("api", "keys").read(KeyViews).root, name)
        answer = client.call("DELETE", "api", "keys", key.id)
    click.echo(answer.body if options.as_json else one_line(f"{key.name}: revoked"))
