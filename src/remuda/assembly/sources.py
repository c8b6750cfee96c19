"""Which galleries and registries backends come from, according to the settings."""

import json

from remuda.assembly.settings.depot import SourceSettings
from remuda.gallery.model import Gallery, galleries_from_json
from remuda.gallery.sources import DEFAULT_GALLERIES
from remuda.oci.reference import canonical_registry
from remuda.oci.transport import Registries


def galleries_of(settings: SourceSettings) -> tuple[Gallery, ...]:
    configured = settings.backend_galleries
    return galleries_from_json(json.dumps(configured)) if configured else DEFAULT_GALLERIES


def registries_of(settings: SourceSettings) -> Registries:
    """How registries are reached from this machine."""
    return Registries(
        insecure=frozenset(settings.insecure_registries),
        mirrors={
            canonical_registry(registry): mirrors for registry, mirrors in settings.registry_mirrors.items()
        },
        ca=settings.registry_ca,
    )
