"""From what is installed to how it is started. Pure."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid
from remuda.worker.launching.manifest import Arguments, BackendManifest
from remuda.worker.launching.templates import OPTIONS, PORT, PlaceholderText, plain
from remuda.worker.processes.model import GRPC_TOKEN_VARIABLE, Protocol, Recipe

# Old and new name of one thing: where Vulkan finds its drivers.
VULKAN_VARIABLES: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


@dataclass(frozen=True, slots=True)
class HttpNeeds:
    """What placeholders stand for. Empty, or None, is what nobody gave."""

    model_path: str = ""
    model_name: str = ""
    context_size: int | None = None
    parallel: int | None = None
    options: tuple[str, ...] = ()

    def values(self) -> dict[str, str]:
        numbers = {"context_size": self.context_size, "parallel": self.parallel}
        given = {name: str(number) for name, number in numbers.items() if number is not None}
        texts = {"model_path": self.model_path, "model_name": self.model_name}
        return given | {name: text for name, text in texts.items() if text}


def grpc_recipe(
    run_file: Path,
    environ: Mapping[str, str],
    token: str,
    vulkan_files: Sequence[Path] = (),
    *,
    bind: str = "0.0.0.0",
) -> Recipe:
    """A LocalAI backend: its run file, from its own folder. `environ` is scrubbed; the token is put in here.

    The file is named by its folder, so that no PATH is searched; the kernel hands a script that same name.
    """
    env = dict(environ)
    if token:
        env[GRPC_TOKEN_VARIABLE] = token
    if vulkan_files:
        env |= dict.fromkeys(VULKAN_VARIABLES, os.pathsep.join(str(path) for path in vulkan_files))
    argv = (f"./{run_file.name}", "--addr", f"{bind}:{{port}}")
    return Recipe(argv, run_file.parent, env, Protocol.GRPC)


def http_recipe(
    manifest: BackendManifest, folder: Path, environ: Mapping[str, str], needs: HttpNeeds
) -> Recipe:
    """A server described by a manifest, started in `folder`. `environ` is scrubbed, and no token is added:
    only the worker calls it. Invalid, naming the placeholder, where the manifest needs what nobody gave."""
    assert manifest.protocol is Protocol.HTTP, "others are started by their run file"
    values = needs.values()
    argv = [text for part in manifest.command for text in _expanded(part, values, needs.options)]
    env = {name: _filled(f"env.{name}", template, values) for name, template in manifest.env.items()}
    return Recipe(
        tuple(argv), folder, {**environ, **env}, Protocol.HTTP, manifest.health, manifest.start_limit
    )


def check_recipe(manifest: BackendManifest, folder: Path, environ: Mapping[str, str]) -> Recipe:
    """The start without a model that a manifest declares, to see that the server works. Environment variables
    that tell of a model are left out."""
    assert manifest.check, "the caller has looked"
    env = {name: template for name, template in manifest.env.items() if not _missing(template, {})}
    alone = manifest.model_copy(update={"command": manifest.check, "env": env})
    return http_recipe(alone, folder, environ, HttpNeeds())


def _expanded(part: Arguments, values: Mapping[str, str], options: Sequence[str]) -> Iterator[str]:
    if part.optional and any(_missing(template, values) for template in part.templates):
        return
    for template in part.templates:
        if OPTIONS in template.names:
            yield from (plain(option) for option in options)
        else:
            yield _filled("command", template, values)


def _filled(field: str, template: PlaceholderText, values: Mapping[str, str]) -> str:
    if missing := _missing(template, values):
        raise Invalid(
            f"{field} of this backend uses {{{missing}}}, and none was given",
            hint=f"give the model a {missing}, or make it optional in the backend's remuda.yaml",
        )
    return template.filled(values)


def _missing(template: PlaceholderText, values: Mapping[str, str]) -> str:
    return min((name for name in template.names if name != PORT and name not in values), default="")
