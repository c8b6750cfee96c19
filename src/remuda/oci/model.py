"""What registries hold, as data: descriptors, manifests, indexes, configurations, the image they make up;
and which of an image's builds fits a machine, or why none does. Pure.

Documents are read tolerantly, but nothing from them is used in a path or URL before its form was checked.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from remuda.core.errors import Invalid
from remuda.core.field_errors import field_error
from remuda.oci import limits
from remuda.oci.errors import ContentRefused
from remuda.oci.reference import Reference, parse_digest


def digest_of_bytes(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def checked_digest(body: bytes, promised: str, what: str) -> str:
    """The digest, if the bytes have it; else ContentRefused."""
    algorithm = promised.partition(":")[0]
    actual = f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"
    if actual != promised:
        raise ContentRefused(f"{what} should have digest {promised} but has {actual}")
    return promised


MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_SIZE_MAX = 1 << 50
_LAYER_TYPES = (
    "application/vnd.oci.image.layer.",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
)


@dataclass(frozen=True, slots=True)
class Platform:
    """What a build runs on. Empty parts are unknown."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        name = f"{self.os or 'unknown'}/{self.architecture or 'unknown'}"
        return f"{name}/{self.variant}" if self.variant else name


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Bytes by content: exactly one sequence has this digest and size."""

    digest: str
    size: int
    media_type: str
    platform: Platform | None = None


@dataclass(frozen=True, slots=True)
class ImageIndex:
    """A choice of builds."""

    builds: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """One build."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    platform: Platform
    diff_ids: tuple[str, ...] = ()
    """Digests of the layers as plain tar, in the order of the layers."""


@dataclass(frozen=True, slots=True)
class Image:
    """One build, ready to be fetched.

    `digest` is what the registry has under the name that was asked for: of an image for several platforms
    the index's, which is what other tools record too. `platform_digest` is the chosen build's.
    """

    name: str
    digest: str
    platform_digest: str
    config: ImageConfig
    layers: tuple[Descriptor, ...]
    reference: Reference | None = None
    """Where layers can be had. None when they have all been brought already."""

    @property
    def size(self) -> int:
        """Bytes to fetch; a layer that stands twice in an image travels once."""
        return sum({layer.digest: layer.size for layer in self.layers}.values())


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, hide_input_in_errors=True)


class _PlatformPart(_Document):
    os: str = ""
    architecture: str = ""
    variant: str = ""


class _DescriptorPart(_Document):
    digest: Annotated[str, AfterValidator(parse_digest)]
    size: Annotated[int, Field(ge=0, le=_SIZE_MAX)]
    media_type: str = ""
    platform: _PlatformPart | None = None


class _ManifestDocument(_Document):
    media_type: str = ""
    schema_version: int = 0
    manifests: Annotated[tuple[_DescriptorPart, ...], Field(max_length=limits.INDEX_ENTRIES_MAX)] | None = (
        None
    )
    config: _DescriptorPart | None = None
    layers: Annotated[tuple[_DescriptorPart, ...] | None, Field(max_length=limits.LAYERS_MAX)] = None


class _RootFs(BaseModel):
    diff_ids: tuple[Annotated[str, AfterValidator(parse_digest)], ...] = ()


class _ConfigDocument(_PlatformPart):
    rootfs: _RootFs = _RootFs()


D = TypeVar("D", bound=_Document)


def parse_manifest(body: bytes, name: str) -> ImageManifest | ImageIndex:
    """ContentRefused, naming `name` and the field, when it is neither."""
    document = _parse(_ManifestDocument, body, f"the manifest of {name}")
    if document.manifests is not None:
        return ImageIndex(tuple(_descriptor(part) for part in document.manifests))
    if document.schema_version == 1:
        raise ContentRefused(
            f"the manifest of {name} is of the old form 1, without verifiable layers",
            hint="push the image again with a current tool",
        )
    if document.config is None or document.layers is None:
        raise ContentRefused(f"the manifest of {name} lists neither builds nor layers")
    layers = tuple(_descriptor(part) for part in document.layers)
    for number, layer in enumerate(layers, 1):
        if not layer.media_type.startswith(_LAYER_TYPES) or layer.media_type.endswith("+encrypted"):
            raise ContentRefused(
                f"layer {number} of {name} is {layer.media_type!r}, not a file system layer that can be read",
                hint="this is no container image, or it is encrypted",
            )
    return ImageManifest(_descriptor(document.config), layers)


def parse_config(body: bytes, name: str) -> ImageConfig:
    document = _parse(_ConfigDocument, body, f"the configuration of {name}")
    return ImageConfig(_platform(document), document.rootfs.diff_ids)


def _parse(kind: type[D], body: bytes, what: str) -> D:
    try:
        return kind.model_validate_json(body)
    except (ValidationError, Invalid) as error:
        raise ContentRefused(f"{what} cannot be used: {_first_fault(error)}") from error


def _first_fault(error: ValidationError | Invalid) -> str:
    if isinstance(error, Invalid):
        return str(error)
    fault = error.errors(include_url=False, include_input=False)[0]
    if fault["type"] == "json_invalid":
        return "it is not JSON"
    return field_error(fault, subject="it")


def _descriptor(part: _DescriptorPart) -> Descriptor:
    platform = _platform(part.platform) if part.platform is not None else None
    return Descriptor(part.digest, part.size, part.media_type, platform)


def _platform(part: _PlatformPart) -> Platform:
    return Platform(part.os.lower(), part.architecture.lower(), part.variant.lower())


# What a build without a variant was made for; newer machines of a family run what older ones do.
_LEVELS_BY_DEFAULT = {"amd64": 1, "arm": 7, "arm64": 8}
_ARCHITECTURES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "i386": "386",
    "i686": "386",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv6l": "arm/v6",
    "armv7l": "arm/v7",
    "armv8l": "arm/v8",
}
_LEVEL = re.compile(r"v(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Unfit:
    """There are builds, but none for this machine."""

    reason: str


def platform_of(system: str, machine: str) -> Platform:
    """A machine as images name it, from what the operating system calls itself and its processor."""
    architecture, _, variant = _ARCHITECTURES.get(machine.lower(), machine.lower()).partition("/")
    return Platform(system.lower(), architecture, variant)


def choose(builds: Sequence[Descriptor], wanted: Platform) -> Descriptor | Unfit:
    """The most specific build that the machine can run; of equals the first listed.

    Attestations are no builds. A single build that does not say what it is for may be the right one: its
    configuration will tell.
    """
    real = [build for build in builds if not _is_attestation(build)]
    fitting = [build for build in real if build.platform is not None and fits(build.platform, wanted)]
    if fitting:
        return max(fitting, key=lambda build: _level(build.platform))
    unlabelled = [build for build in real if build.platform is None]
    if len(unlabelled) == 1:
        return unlabelled[0]
    return Unfit(why_unfit([build.platform for build in real if build.platform is not None], wanted))


def fits(built_for: Platform, wanted: Platform) -> bool:
    """Whether the machine can run it. A part that a build leaves empty says nothing against it."""
    if built_for.os not in ("", wanted.os) or built_for.architecture not in ("", wanted.architecture):
        return False
    have, need = _level(wanted), _level(built_for)
    if have and need:
        return need <= have
    return built_for.variant in ("", wanted.variant)


def why_unfit(available: Sequence[Platform], wanted: Platform) -> str:
    """Both what is missing and what there is."""
    names = sorted({str(platform) for platform in available})
    match names:
        case []:
            return f"no build for {wanted}; there is none for any machine"
        case [only]:
            return f"no build for {wanted}; there is one for {only}"
        case _:
            return f"no build for {wanted}; there are builds for {', '.join(names[:-1])} and {names[-1]}"


def _is_attestation(build: Descriptor) -> bool:
    return build.platform is not None and "unknown" in (build.platform.os, build.platform.architecture)


def _level(platform: Platform | None) -> int:
    """The variant as a number; 0 where it cannot be compared."""
    if platform is None or platform.architecture not in _LEVELS_BY_DEFAULT:
        return 0
    if not platform.variant:
        return _LEVELS_BY_DEFAULT[platform.architecture]
    level = _LEVEL.fullmatch(platform.variant)
    return int(level[1]) if level else 0
