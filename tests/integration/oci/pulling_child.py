"""A process that pulls one image into a store and says how far it is, for tests that end it at any time."""

import sys
from datetime import timedelta
from pathlib import Path

import anyio

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.retry import Backoff
from remuda.oci.blobs import BlobStore
from remuda.oci.client import open_client
from remuda.oci.fetch import FileProgress, fetch_image
from remuda.oci.model import Platform
from remuda.oci.reference import parse_reference
from remuda.oci.transport import RetryPolicy


async def pull(reference: str, root: Path) -> None:
    def tell(event: FileProgress) -> None:
        print(event.file, event.done_bytes, flush=True)

    retry = RetryPolicy(backoff=Backoff(timedelta(milliseconds=10), timedelta(milliseconds=50)))
    async with open_client(SystemClock(), SystemEntropy(), retry=retry) as client:
        image = await client.image(parse_reference(reference), Platform("linux", "amd64"))
        async with fetch_image(client, image, BlobStore(root), tell) as fetched:
            await fetched.layers()


if __name__ == "__main__":
    anyio.run(pull, sys.argv[1], Path(sys.argv[2]))
