"""Which galleries, registries and hubs backends and models come from, according to the settings."""

import json
from collections.abc import Mapping

from remuda.assembly.settings.depot import SourceSettings
from remuda.assembly.settings.frontend import FrontendSettings
from remuda.assembly.settings.shared import CommonSettings
from remuda.gallery.model import Gallery, galleries_from_json
from remuda.gallery.sources import DEFAULT_GALLERIES, DEFAULT_MODEL_GALLERIES
from remuda.host.folder import DataFolder
from remuda.hubs.credentials import CredentialsFile
from remuda.hubs.hubs import HubAccess
from remuda.oci.reference import canonical_registry
from remuda.oci.transport import Registries
from remuda.s3.account import S3Account


def galleries_of(settings: SourceSettings) -> tuple[Gallery, ...]:
    """An empty list is none."""
    configured = settings.backend_galleries
    return DEFAULT_GALLERIES if configured is None else galleries_from_json(json.dumps(configured))


def model_galleries_of(settings: FrontendSettings) -> tuple[Gallery, ...]:
    configured = settings.model_galleries
    return DEFAULT_MODEL_GALLERIES if configured is None else galleries_from_json(json.dumps(configured))


def registries_of(settings: SourceSettings) -> Registries:
    """How registries are reached from this machine."""
    return Registries(
        insecure=frozenset(settings.insecure_registries),
        mirrors={
            canonical_registry(registry): mirrors for registry, mirrors in settings.registry_mirrors.items()
        },
        ca=settings.registry_ca,
    )


def hub_access(settings: FrontendSettings, folder: DataFolder, env: Mapping[str, str]) -> HubAccess:
    """How models' sources are reached from the frontend's machine."""
    file = settings.credentials_file or folder.root / "credentials.toml"
    return HubAccess(CredentialsFile(file), env, settings.ollama_registry)


def storage_account(settings: CommonSettings) -> S3Account | None:
    """None: there is no object storage."""
    if not settings.storage_url:
        return None
    return S3Account(
        settings.storage_url,
        settings.storage_bucket,
        settings.storage_region,
        settings.storage_access_key,
        settings.storage_secret_key,
    )
