"""Settings of processes that look up or fetch backends: which galleries and registries are asked, and how
much is kept."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from remuda.assembly.settings import forms
from remuda.assembly.settings.forms import Duration, File, JsonList, Words
from remuda.assembly.settings.shared import CommonSettings
from remuda.core import durations
from remuda.core.settings import Setting
from remuda.wire.sizes import parse_size

SIZE: Final = "a size such as 50GiB"
MIRRORS: Final = "REGISTRY=MIRROR,REGISTRY=MIRROR"

_HOST: Final = r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]"
_REGISTRY: Final = re.compile(rf"(?:{_HOST})(?::\d{{1,5}})?")
_MIRROR: Final = re.compile(rf"(?:https?://)?(?:{_HOST})(?::\d{{1,5}})?/?")


def _pairs(value: object) -> object:
    """`registry=mirror,registry=mirror`, the mirrors of one registry in their order. Or a JSON object."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return json.loads(value)
    mirrors = defaultdict[str, list[str]](list)
    for part in filter(None, map(str.strip, value.split(","))):
        registry, equals, mirror = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} has no equals sign")
        mirrors[registry.strip()].append(mirror.strip())
    return mirrors


def _checked_mirrors(value: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    for registry, mirrors in value.items():
        _checked_registries((registry,))
        for mirror in mirrors:
            if not _MIRROR.fullmatch(mirror):
                raise ValueError(f"{mirror!r} is neither HOST[:PORT] nor http(s)://HOST[:PORT]")
    return value


def _checked_registries(value: tuple[str, ...]) -> tuple[str, ...]:
    for registry in value:
        if not _REGISTRY.fullmatch(registry):
            raise ValueError(f"{registry!r} is not HOST or HOST:PORT")
    return value


def _checked_size(value: str) -> str:
    if parse_size(value) is None:
        raise ValueError(f"{value!r} is not {SIZE}")
    return value


Mirrors = Annotated[Mapping[str, tuple[str, ...]], BeforeValidator(_pairs), AfterValidator(_checked_mirrors)]
RegistryNames = Annotated[Words, AfterValidator(_checked_registries)]
Size = Annotated[str, AfterValidator(_checked_size)]


class SourceSettings(CommonSettings):
    backend_galleries: Annotated[
        JsonList | None,
        Setting(
            "Backend galleries; []: none. Without it the usual ones.",
            forms.JSON,
            aliases=("LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
            hidden=True,
        ),
    ] = None
    registry_mirrors: Annotated[
        Mirrors,
        Setting(
            "Mirrors that are asked before a registry, such as docker.io=mirror.example.org. "
            "A registry may be given several times.",
            MIRRORS,
            hidden=True,
        ),
    ] = Field(default_factory=dict)
    registry_ca: Annotated[
        File | None,
        Setting("PEM file of a CA that signs registries' certificates.", forms.FILE, hidden=True),
    ] = None
    insecure_registries: Annotated[
        RegistryNames,
        Setting("Registries to use over plain HTTP.", "HOST[:PORT],HOST[:PORT]", hidden=True),
    ] = ()


class DepotSettings(SourceSettings):
    depot_budget: Annotated[Size, Setting("Most to keep of downloaded layers.", SIZE, hidden=True)] = "50GiB"
    depot_unused: Annotated[
        Duration,
        Setting("How long to keep layers that no backend needs.", durations.ACCEPTED, hidden=True),
    ] = timedelta(days=14)

    @property
    def depot_budget_bytes(self) -> int:
        size = parse_size(self.depot_budget)
        assert size is not None, "it was checked"
        return size
