"""All commands of `remuda`: those that ask a frontend, beside those that run until they are stopped."""

from remuda.cli import (
    backend_register,
    backends,
    bench,
    chat,
    completion,
    config,
    doctor,
    explain,
    fleet_backends,
    join_line,
    keys,
    leave,
    logs,
    model_installs,
    models,
    nodes,
    ops,
    servers,
    usage,
)
from remuda.cli.main import root

__all__ = ["root"]

for backend_verb in (*fleet_backends.VERBS, backend_register.register, backend_register.switch_back):
    backends.group.add_command(backend_verb)
for verb in (
    nodes.group,
    backends.group,
    ops.group,
    keys.group,
    servers.group,
    usage.command,
    models.group,
    chat.run,
    model_installs.pull,
    model_installs.named(models.list_replicas, "ps", "remuda ps"),
    model_installs.named(models.list_models, "ls", "remuda ls"),
    model_installs.named(models.list_models, "list", "remuda list", hidden=True),
    model_installs.named(models.show_model, "show", "remuda show qwen3-8b"),
    model_installs.named(model_installs.remove, "rm", "remuda rm qwen3-8b"),
    model_installs.named(models.unload_model, "stop", "remuda stop qwen3-8b"),
    chat.chat,
    bench.command,
    explain.command,
    join_line.command,
    leave.command,
    logs.command,
    config.group,
    doctor.command,
    completion.command,
):
    root.add_command(verb)
