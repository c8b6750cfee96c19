"""All files of a model that is to be installed, with their sizes as far as their sources tell them."""

from dataclasses import dataclass, replace

from remuda.core.errors import Invalid
from remuda.hubs.model import AskRoom, RemoteFile, Resolved
from remuda.model_installs.companions import COMPANION, config_of, snapshots
from remuda.model_installs.ports import ModelHub
from remuda.models.source_refs import parse_source
from remuda.oci.errors import ContentRefused
from remuda.ops.model import ModelSpec


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Of a model from `source` with what else was asked for about it."""

    hub: ModelHub
    room: AskRoom
    source: str
    spec: ModelSpec

    async def resolved(self, source: str) -> Resolved:
        """Its own files, from `source`: the first one or a mirror. Each from a source of its own where they
        are listed."""
        if not self.spec.parts:
            return await self.hub.resolve(parse_source(source), self.room)
        files = [await self.only_file(part.path, part.source, part.sha256) for part in self.spec.parts]
        return Resolved(parse_source(self.source), "", tuple(files))

    async def companions(self) -> list[RemoteFile]:
        """What its configuration wants beside its own files."""
        config, found = config_of(self.spec.config), list[RemoteFile]()
        listed = {part.path for part in self.spec.parts}
        for wanted in config.download_files:
            if wanted.filename not in listed:
                found.append(await self.only_file(wanted.filename, wanted.uri, wanted.sha256))
        for snapshot in snapshots(config, "" if self.spec.parts else self.source):
            for file in (await self.hub.snapshot(snapshot.source)).files:
                if snapshot.takes(file.path):
                    found.append(replace(file, path=f"{snapshot.folder}/{file.path}", role=COMPANION))
        return found

    async def only_file(self, path: str, source: str, sha256: str) -> RemoteFile:
        found = (await self.hub.resolve(parse_source(source), self.room)).files
        own = [one for one in found if not one.role] or found  # Without what a hub knows to belong to it.
        if len(own) != 1:
            raise Invalid(f"{source} is {len(own)} files, and one is meant, called {path}")
        if sha256 and own[0].sha256 not in ("", sha256):
            raise ContentRefused(f"{path} is to have the checksum {sha256}, not {own[0].sha256}")
        return replace(own[0], path=path, sha256=sha256 or own[0].sha256)
