"""Models in OCI registries: Ollama's library, and artifacts that list their files as layers.

A layer's address is the registry's own (https://HOST/v2/REPOSITORY/blobs/DIGEST), so that it can be stored
like any other; who fetches it signs in as the registry asks.
"""

import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from yarl import URL

from remuda.core.errors import Forbidden, Invalid, NotFound, Unauthorized
from remuda.hubs.model import ModelHints, Offer, RemoteFile, Resolved
from remuda.hubs.packed_layers import (
    PackedFile,
    PackedSupplier,
    listed,
    member_url,
    model_files,
    parse_member,
)
from remuda.models.files import path_fault
from remuda.models.source_refs import OciModel, OllamaModel
from remuda.oci import limits
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused
from remuda.oci.model import Descriptor
from remuda.oci.reference import Reference, canonical_registry, parse_digest, parse_reference
from remuda.oci.transport import BodyStream

TEXT_BYTES_MAX: Final = 1 << 20  # Of a template, a system prompt, or parameters.

_OLLAMA: Final = "application/vnd.ollama.image."
_ROLES: Final = {"model": "", "projector": "mmproj", "adapter": "adapter", "draft": "draft"}
_BLOB_URL: Final = re.compile(r"(https?)://([^/]+)/v2/(.+)/blobs/(sha256:[0-9a-f]{64})")
_TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_DOCKER_TYPE: Final = re.compile(r"application/vnd\.docker\.ai\.(gguf|mmproj|safetensors)\b.*")
_TAR_TYPES: Final = re.compile(r".*(\.tar|\+gzip|\+zstd|diff\.tar.*|layer\.v1\.tar.*)")
_WEIGHTS: Final = (".gguf", ".safetensors")
_PACKED_LAYERS_MAX: Final = 64


class _Layer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, hide_input_in_errors=True)

    digest: Annotated[str, AfterValidator(parse_digest)]
    size: Annotated[int, Field(ge=0, le=1 << 50)]
    media_type: str = ""
    annotations: Mapping[str, str] | None = None

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:") if self.digest.startswith("sha256:") else ""

    @property
    def title(self) -> str:
        return next(filter(None, ((self.annotations or {}).get(name, "") for name in _TITLES)), "")


class _Artifact(BaseModel):
    layers: Annotated[tuple[_Layer, ...], Field(max_length=limits.LAYERS_MAX)] = ()
    manifests: Annotated[tuple[_Layer, ...], Field(max_length=limits.INDEX_ENTRIES_MAX)] = ()


_PARAMETERS: Final = TypeAdapter(dict[str, JsonValue])


class ModelRegistries:
    def __init__(self, client: RegistryClient, ollama_host: str) -> None:
        self._client = client
        self._ollama_host = ollama_host

    async def resolve_ollama(self, source: OllamaModel) -> Resolved:
        reference = Reference(source.host or self._ollama_host, f"{source.owner}/{source.name}", source.tag)
        try:
            digest, artifact = await self._artifact(reference)
        except NotFound as error:
            raise NotFound(
                f"{reference.registry} has no model {source.owner}/{source.name} with the tag {source.tag}",
                hint="check the name and its tags on the library's page",
            ) from error
        except (Unauthorized, Forbidden) as error:
            raise Unauthorized(
                f"{source} is private or does not exist",
                hint="signing in to Ollama's library is not supported",
            ) from error
        files = tuple(self._ollama_files(source, reference, artifact))
        return Resolved(source, digest, files, hints=await self._hints(reference, artifact))

    async def resolve_oci(self, source: OciModel) -> Resolved:
        reference = parse_reference(source.reference)
        digest, artifact = await self._artifact(reference)
        if any(layer.media_type.startswith(_OLLAMA) for layer in artifact.layers):
            named = OllamaModel("", reference.repository.rpartition("/")[2], reference.tag or "latest")
            held = tuple(self._ollama_files(named, reference, artifact))
            return Resolved(source, digest, held, hints=await self._hints(reference, artifact))
        files = list(self._artifact_files(reference, artifact))
        weights = any(file.path.lower().endswith(_WEIGHTS) for file in files)
        described = any(file.path.endswith((".gguf", "config.json")) for file in files)
        packed = [layer for layer in artifact.layers if _is_packed(layer)]
        if packed and not (weights and described):
            files += await self._packed_files(reference, packed, weights=not weights)
        if not files:
            raise Invalid(
                f"{reference} holds no model: its layers are neither named files nor GGUF, and there is "
                "neither a GGUF nor a safetensors file in them",
                hint="push the files themselves, for example with `oras push`",
            )
        return Resolved(source, digest, tuple(files))

    def _ollama_files(
        self, source: OllamaModel, reference: Reference, artifact: _Artifact
    ) -> list[RemoteFile]:
        kinds = [layer.media_type.removeprefix(_OLLAMA) for layer in artifact.layers]
        if "model" not in kinds:
            why = "it is kept as single tensors" if "tensor" in kinds else "it has no file of weights"
            raise Invalid(
                f"{source} cannot be used: {why}", hint="choose another tag, or the model's hf:// source"
            )
        files: list[RemoteFile] = []
        for kind, layer in zip(kinds, artifact.layers, strict=True):
            if kind in _ROLES:
                suffix = f"-{_ROLES[kind]}" if _ROLES[kind] else ""
                number = f"-{len(files)}" if any(file.role == _ROLES[kind] for file in files) else ""
                name = f"{source.name}-{source.tag}{suffix}{number}.gguf"
                files.append(self._remote(reference, layer, name, _ROLES[kind]))
        return files

    def _artifact_files(self, reference: Reference, artifact: _Artifact) -> list[RemoteFile]:
        """Of layers that are files."""
        stem = reference.repository.rpartition("/")[2]
        kinds = Counter(found[1] for found in map(_docker, artifact.layers) if found)
        files, numbers = list[RemoteFile](), Counter[str]()
        for layer in artifact.layers:
            if docker := _docker(layer):
                kind = docker[1]
                numbers[kind] += 1
                name = layer.title or _part_name(stem, kind, numbers[kind], kinds[kind])
                files.append(self._remote(reference, layer, name, "mmproj" if kind == "mmproj" else ""))
            elif layer.title and not _is_packed(layer):
                files.append(self._remote(reference, layer, layer.title, ""))
        return files

    async def _packed_files(
        self, reference: Reference, layers: Sequence[_Layer], *, weights: bool
    ) -> list[RemoteFile]:
        """Of layers that are archives; a later layer's file replaces an earlier one's."""
        if len(layers) > _PACKED_LAYERS_MAX:
            raise Invalid(
                f"{reference} has {len(layers)} packed layers, {_PACKED_LAYERS_MAX} are looked into"
            )
        held: dict[str, tuple[_Layer, int]] = {}
        for layer in layers:
            for file in await listed(self._client, reference, layer.digest):
                held[file.path] = layer, file.size
        chosen = model_files([PackedFile(path, size) for path, (_, size) in held.items()], weights=weights)
        top = os.path.commonpath([file.path.rpartition("/")[0] for file in chosen]) if chosen else ""
        last = {held[file.path][0].digest: file.path for file in chosen}
        files: list[RemoteFile] = []
        for file in chosen:
            layer, path = held[file.path][0], file.path
            name = path.removeprefix(f"{top}/") if top else path
            url = str(self._client.blob_url(reference, layer.digest))
            place = member_url(url, path, last=last[layer.digest] == path)
            files.append(RemoteFile(_usable(reference, name), file.size, "", (place,)))
        return files

    def _remote(self, reference: Reference, layer: _Layer, name: str, role: str) -> RemoteFile:
        name = _usable(reference, name)
        url = self._client.blob_url(reference, layer.digest)
        return RemoteFile(name, layer.size, layer.sha256, (str(url),), role)

    async def _artifact(self, reference: Reference) -> tuple[str, _Artifact]:
        digest, artifact = await self._client.manifest(reference, lambda body: _parsed(body, reference))
        if artifact.manifests and not artifact.layers:
            build = reference.pinned(artifact.manifests[0].digest)
            _, artifact = await self._client.manifest(build, lambda body: _parsed(body, build))
        return digest, artifact

    async def _hints(self, reference: Reference, artifact: _Artifact) -> ModelHints:
        texts = {
            kind: await self._text(reference, layer)
            for layer in artifact.layers
            if (kind := layer.media_type.removeprefix(_OLLAMA)) in ("template", "system", "params")
        }
        try:
            parameters = _PARAMETERS.validate_json(texts.get("params") or "{}")
        except ValidationError as error:
            raise ContentRefused(f"the parameters of {reference} are not a JSON object") from error
        return ModelHints(texts.get("template", ""), texts.get("system", ""), parameters)

    async def _text(self, reference: Reference, layer: _Layer) -> str:
        what = f"{layer.media_type} of {reference}"
        if layer.size > TEXT_BYTES_MAX:
            raise ContentRefused(f"{what} is larger than {TEXT_BYTES_MAX} bytes")
        blob = Descriptor(layer.digest, layer.size, layer.media_type)
        return await self._client.small_blob(
            reference, blob, what, lambda body: body.decode(errors="replace")
        )


def _docker(layer: _Layer) -> re.Match[str] | None:
    return _DOCKER_TYPE.fullmatch(layer.media_type)


def _part_name(stem: str, kind: str, number: int, parts: int) -> str:
    """Of a file without a name, as servers find the parts of a model."""
    if kind == "mmproj":
        return f"{stem}-mmproj.gguf"
    stem = "model" if kind == "safetensors" else stem
    return f"{stem}.{kind}" if parts == 1 else f"{stem}-{number:05}-of-{parts:05}.{kind}"


def _is_packed(layer: _Layer) -> bool:
    return _TAR_TYPES.fullmatch(layer.media_type) is not None


def _usable(reference: Reference, name: str) -> str:
    if fault := path_fault(name):
        raise Invalid(f"{reference} has a file that cannot be used, {name[:200]!r}: {fault}")
    return name


def _parsed(body: bytes, reference: Reference) -> _Artifact:
    try:
        return _Artifact.model_validate_json(body)
    except (ValidationError, Invalid) as error:
        raise ContentRefused(f"the manifest of {reference} cannot be used") from error


@dataclass(slots=True)
class RegistrySupplier:
    """One layer. Its registry's mirrors are asked, too."""

    client: RegistryClient
    reference: Reference
    digest: str

    @property
    def name(self) -> str:
        return f"{self.digest} of {self.reference.registry}/{self.reference.repository}"

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        return Offer(None, self.digest)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        blob = Descriptor(self.digest, 0, "")
        async with self.client.open_blob(self.reference, blob, offset, 0, avoid) as stream:
            yield stream


def registry_supplier(client: RegistryClient, url: str) -> RegistrySupplier | PackedSupplier | None:
    """Of an address of a layer, or of a file in it; None for any other address."""
    member = parse_member(url)
    found = _BLOB_URL.fullmatch(url if member is None else member[0])
    if found is None:
        return None
    reference = Reference(canonical_registry(URL(found[0]).authority), found[3])
    if member is None:
        return RegistrySupplier(client, reference, found[4])
    return PackedSupplier(client, reference, found[4], member[1], member[2])
