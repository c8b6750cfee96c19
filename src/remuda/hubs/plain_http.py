"""Files on web servers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from pathlib import PurePosixPath

from pydantic import SecretStr
from yarl import URL

from remuda.core.errors import Forbidden, Invalid, NotFound, Unauthorized
from remuda.hubs.credentials import entry_hint
from remuda.hubs.model import Offer
from remuda.models.files import path_fault
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused
from remuda.oci.http_file import HttpFile
from remuda.oci.transport import BodyStream, Response

_PAGES = ("text/html", "application/xhtml+xml")


class HttpSupplier:
    """One address. What it redirects to is never given the credentials."""

    def __init__(
        self,
        client: RegistryClient,
        url: str,
        authorization: SecretStr | None,
        explain: Callable[[Response], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._explain = explain
        self._url = URL(url, encoded=True)
        self._authorization = authorization
        self._file: HttpFile | None = None

    @property
    def name(self) -> str:
        return f"{self._url.origin()}{self._url.path}"

    async def look(self) -> Offer:
        """What is there now, without fetching it."""
        found = await self._http_file(None, checked=False).look()
        return Offer(found.size, found.validator)

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        self._file = self._http_file(store, checked)
        if checked:
            return Offer()
        found = await self._file.look()
        return Offer(found.size, found.validator)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        assert self._file is not None, "it was prepared"
        async with self._file.opened(offset) as stream:
            yield stream

    def _http_file(self, store: BlobStore | None, checked: bool) -> HttpFile:
        return HttpFile(
            self._client,
            self._url,
            store,
            checked=checked,
            authorization=self._authorization,
            check=self._refuse_page,
            explain=self._explain or self._explain_refusal,
        )

    async def _explain_refusal(self, answer: Response) -> None:
        if answer.status == 404:
            raise NotFound(
                f"{self.name} does not exist",
                hint=f"check the address; if it is private, {entry_hint(str(answer.url))}",
            )
        if answer.status not in (401, 403) or answer.url.origin() != self._url.origin():
            return
        used = "with the credentials that are used" if self._authorization else "without credentials"
        refusal = Unauthorized if answer.status == 401 else Forbidden
        raise refusal(
            f"the server refuses {self.name} with status {answer.status}, {used}",
            hint=f"if it is private, {entry_hint(str(self._url))}",
        )

    def _refuse_page(self, answer: Response) -> None:
        if is_page(answer):
            raise ContentRefused(
                f"{self.name} is a web page, not a model file",
                hint="give the address that downloads the file itself; behind a sign-in page, put a token "
                "into the credentials file",
            )


def is_page(answer: Response) -> bool:
    """Whether it is a web page, which no file and no answer of a hub's API is."""
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower() in _PAGES


def file_name(url: str) -> str:
    """The name that a file from this address gets."""
    name = PurePosixPath(URL(url, encoded=True).path).name
    if fault := path_fault(name):
        raise Invalid(f"{name[:200]!r} cannot be used as a file name: {fault}")
    return name
