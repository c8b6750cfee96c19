"""How this worker starts what a request asks for: by the backend's run file, or as its manifest says."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from remuda.core.errors import Invalid
from remuda.core.os_errors import without_number
from remuda.core.shell_quoting import pasted
from remuda.host.files import read_small
from remuda.wire.backends import BackendInstall
from remuda.worker.depot.layout import MANIFEST_FILE, RUN_FILE
from remuda.worker.launching.manifest import LIMITS, BackendManifest, parse_manifest
from remuda.worker.launching.recipes import HttpNeeds, check_recipe, grpc_recipe, http_recipe
from remuda.worker.processes.model import USUAL, Protocol, Recipe
from remuda.worker.tokens import OpeningTokens

_VULKAN_FOLDER = Path("vulkan") / "icd.d"
_CONTEXT_SIZE, _PARALLEL = "context_size", "parallel"


@dataclass(frozen=True, slots=True)
class Starting:
    """`environ` is scrubbed already. `bind` is where gRPC backends listen: on all interfaces, as peers do, or
    on loopback where nobody off this machine is meant to reach them."""

    environ: Mapping[str, str] = field(repr=False)
    tokens: OpeningTokens
    bind: str = "0.0.0.0"
    start_limit: timedelta = USUAL.start

    def recipe(self, run_file: Path, request: BackendInstall) -> Recipe | None:
        """None: files are all that was asked for, or there is nothing that could run without a model.

        Raises Invalid when the request lacks what the backend needs.
        """
        folder = run_file.parent
        manifest = _manifest(folder)
        if manifest is None or manifest.protocol is Protocol.GRPC:
            program = folder / RUN_FILE if run_file.name == MANIFEST_FILE else run_file
            _make_executable(program)
            vulkan = sorted((folder / _VULKAN_FOLDER).glob("*.json"))
            recipe = grpc_recipe(program, self.environ, self.tokens.grpc, vulkan, bind=self.bind)
            return replace(recipe, start_limit=self.start_limit)
        if not request.model_id:
            return check_recipe(manifest, folder, self.environ) if request.prove and manifest.check else None
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
