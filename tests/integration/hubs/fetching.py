"""What most tests of sources do: resolve, fetch everything, and look at the bytes."""

from collections.abc import Sequence
from pathlib import Path

from remuda.hubs.hubs import Hubs
from remuda.hubs.model import Resolved
from remuda.hubs.quantisations import NodeRoom
from remuda.models.source_refs import parse_source
from remuda.oci.blobs import BlobStore

BIG_NODE = NodeRoom("big", 64 << 30)


async def no_nodes() -> Sequence[NodeRoom]:
    return ()


async def resolved(hubs: Hubs, text: str, *nodes: NodeRoom) -> Resolved:
    async def room() -> Sequence[NodeRoom]:
        return nodes

    return await hubs.resolve(parse_source(text), room)


async def fetched(hubs: Hubs, text: str, store: BlobStore, *nodes: NodeRoom) -> dict[str, bytes]:
    """The content of each file by its path."""
    found = await resolved(hubs, text, *nodes)
    return {
        file.path: store.path(await hubs.fetch(file, store, lambda done: None)).read_bytes()
        for file in found.files
    }


def write_credentials(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)
