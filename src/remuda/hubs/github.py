"""Files in repositories on GitHub, those that git keeps in large-file storage included."""

import re
from typing import Final
from urllib.parse import quote

from yarl import URL

from remuda.hubs.model import RemoteFile, Resolved
from remuda.hubs.plain_http import HttpSupplier
from remuda.models.source_refs import GithubFile
from remuda.oci.client import RegistryClient
from remuda.oci.http_file import small_call
from remuda.oci.transport import raise_for_status

RAW: Final = "https://raw.githubusercontent.com"
MEDIA: Final = "https://media.githubusercontent.com/media"
DEFAULT_BRANCH: Final = "main"
POINTER_BYTES_MAX: Final = 1_024

_POINTER: Final = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\nsize (\d{1,15})\n"
)


class Github:
    def __init__(self, client: RegistryClient, raw: str = RAW, media: str = MEDIA) -> None:
        self._client = client
        self._raw = raw
        self._media = media

    async def resolve(self, source: GithubFile) -> Resolved:
        """The branch as it is now: GitHub's files have no commit in their answers."""
        path = f"{source.owner}/{source.repo}/{source.branch or DEFAULT_BRANCH}/{quote(source.path)}"
        name = source.path.rpartition("/")[2]
        url = f"{self._raw}/{path}"
        offer = await HttpSupplier(self._client, url, None).look()
        if offer.size is not None and offer.size <= POINTER_BYTES_MAX:
            pointer = _POINTER.match(await small_call(self._client, url, lambda: self._small(url)))
            if pointer is not None:
                sha256, size = pointer[1].decode(), int(pointer[2])
                return Resolved(source, sha256, (RemoteFile(name, size, sha256, (f"{self._media}/{path}",)),))
        return Resolved(source, offer.version, (RemoteFile(name, offer.size, "", (url,)),))

    async def _small(self, url: str) -> bytes:
        async with self._client.transport.request("GET", URL(url, encoded=True)) as answer:
            if answer.status != 200:
                await raise_for_status(answer, url, self._client.clock.now())
            return await answer.body(POINTER_BYTES_MAX, url)
