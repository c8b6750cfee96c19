"""How this worker starts what a request asks for: by the backend's run file, or as its manifest says."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.hints import pasted
from remuda.core.os_errors import without_number
from remuda.wire.backends import BackendInstall
from remuda.worker.depot.layout import MANIFEST_FILE, RUN_FILE, read_small
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.launching.environment import visible_gpus
from remuda.worker.launching.manifest import (
    LIMITS,
    OPTIONS,
    PORT,
    Arguments,
    BackendManifest,
    PlaceholderText,
    parse_manifest,
    plain,
)
from remuda.worker.processes.model import GRPC_TOKEN_VARIABLE, USUAL, Protocol, Recipe

# Old and new name of one thing: where Vulkan finds its drivers.
VULKAN_VARIABLES: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


@dataclass(frozen=True, slots=True)
class HttpNeeds:
    """What placeholders stand for. Empty, or None: not given."""

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
    only the worker calls it. Invalid, naming the placeholder, where the manifest needs what was not given."""
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


_VULKAN_FOLDER = Path("vulkan") / "icd.d"
_CONTEXT_SIZE, _PARALLEL = "context_size", "parallel"


@dataclass(frozen=True, slots=True)
class Starting:
    """`environ` is scrubbed already. `bind` is where gRPC backends listen: on all interfaces, as peers do, or
    on loopback where they are not meant to be reached from other machines."""

    environ: Mapping[str, str] = field(repr=False)
    tokens: OpeningTokens
    bind: str = "0.0.0.0"
    start_limit: timedelta = USUAL.start

    def recipe(self, run_file: Path, request: BackendInstall) -> Recipe | None:
        """None: files are all that was asked for, or there is nothing that could run without a model.

        Raises Invalid when the request lacks what the backend needs.
        """
        recipe = self._recipe(run_file, request)
        chosen = visible_gpus(self.environ, request.gpus) if request.gpus else {}
        return replace(recipe, env={**recipe.env, **chosen}) if recipe and chosen else recipe

    def _recipe(self, run_file: Path, request: BackendInstall) -> Recipe | None:
        folder = run_file.parent
        manifest = _manifest(folder)
        if manifest is None or manifest.protocol is Protocol.GRPC:
            program = folder / RUN_FILE if run_file.name == MANIFEST_FILE else run_file
            _make_executable(program)
            vulkan = sorted((folder / _VULKAN_FOLDER).glob("*.json"))
            recipe = grpc_recipe(program, self.environ, self.tokens.grpc, vulkan, bind=self.bind)
            return replace(recipe, start_limit=self.start_limit)
        if not request.model_id:
            return check_recipe(manifest, folder, self.environ) if manifest.check else None
        if request.protocol != Protocol.HTTP:
            raise Invalid(
                f"{request.backend} speaks HTTP, and gRPC was asked for",
                hint="load it through a Remuda frontend",
            )
        return http_recipe(manifest, folder, self.environ, needs(request))


def starts_alone(folder: Path) -> bool:
    """Whether a backend can be started without a model; taken for granted where its file cannot be read, for
    that is found out by starting it. Blocks on the disk."""
    try:
        manifest = _manifest(folder)
    except Invalid:
        return True
    return manifest is None or manifest.protocol is Protocol.GRPC or bool(manifest.check)


def needs(request: BackendInstall) -> HttpNeeds:
    """Two options have names of their own in manifests; the others are passed on as they are."""
    named = dict[str, int]()
    others = list[str]()
    for option in request.options:
        name, _, value = option.partition(":")
        if name in (_CONTEXT_SIZE, _PARALLEL) and value.isascii() and value.isdigit():
            named[name] = int(value)
        else:
            others.append(option)
    return HttpNeeds(
        request.model_path, request.model_id, named.get(_CONTEXT_SIZE), named.get(_PARALLEL), tuple(others)
    )


def _make_executable(program: Path) -> None:
    """Images are published whose run file lacks its execute bit, and peers start them."""
    if os.access(program, os.X_OK):
        return
    try:
        program.chmod(stat.S_IMODE(program.stat().st_mode) | stat.S_IRWXU)
    except FileNotFoundError:
        raise Invalid(f"{program} is missing", hint="install the backend again") from None
    except OSError as error:
        raise Invalid(
            f"{program} is not executable, and cannot be made so: {error.strerror}",
            hint=f"as the owner of the file: chmod +x {pasted(str(program))}",
        ) from error


def _manifest(folder: Path) -> BackendManifest | None:
    path = folder / MANIFEST_FILE
    try:
        return parse_manifest(read_small(path, LIMITS.bytes, within=folder), str(path))
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:  # A link to itself is one or the other.
        raise Invalid(f"{path} cannot be read: {without_number(str(error))}") from error
