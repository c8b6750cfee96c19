"""Models on Hugging Face, or on a server that speaks as it does (HF_ENDPOINT).

Every file is pinned to the commit that its revision stood for. The token goes to the hub and never to the
storage that it redirects to.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from anyio.to_thread import run_sync
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from yarl import URL

from remuda.core.errors import Forbidden, Invalid, NotFound, RemudaError, Unauthorized
from remuda.core.hints import did_you_mean
from remuda.hubs.credentials import entry_hint
from remuda.hubs.hugging_face_settings import HubCache, HubSettings, is_commit
from remuda.hubs.model import AskRoom, RemoteFile, Resolved
from remuda.hubs.plain_http import HttpSupplier, is_page
from remuda.hubs.quantisations import RepoFile, choose_files, is_projector, missing_file_hint, needs_room
from remuda.models.files import FILES_MAX, path_fault
from remuda.models.gguf import parts_of
from remuda.models.source_refs import HubModel, LocalPath
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, RegistryBusy
from remuda.oci.http_file import small_call
from remuda.oci.transport import Response, raise_for_status

PAGE_BYTES_MAX: Final = 16 << 20
PAGES_MAX: Final = 200
DEFAULT_REVISION: Final = "main"
_MESSAGE_CHARS_MAX: Final = 300
_NAMED_MAX: Final = 12
_NO_REVISION: Final = "RevisionNotFound"
_NEXT: Final = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_RESET: Final = re.compile(r";\s*t=(\d{1,6})")
_RESOLVE: Final = re.compile(r"[^/]+/[^/]+/resolve/[^/]+/.")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

FindToken = Callable[[str], Awaitable[SecretStr | None]]
"""The Authorization header for an address, where the credentials file has one."""


class _Lfs(BaseModel):
    oid: str = ""


class _TreeEntry(BaseModel):
    type: str
    path: str
    size: int = 0
    lfs: _Lfs | None = None


class _Ref(BaseModel):
    name: str


class _Refs(BaseModel):
    branches: tuple[_Ref, ...] = ()
    tags: tuple[_Ref, ...] = ()


_TREE: Final = TypeAdapter(tuple[_TreeEntry, ...])


@dataclass(frozen=True, slots=True)
class _Head:
    """What the hub says of one file. `repo` differs from what was asked for after a rename."""

    repo: str
    commit: str
    size: int | None
    sha256: str


class HuggingFace:
    def __init__(self, client: RegistryClient, settings: HubSettings, find_token: FindToken) -> None:
        self._client = client
        self._settings = settings
        self._find_token = find_token

    async def resolve(self, source: HubModel, room: AskRoom) -> Resolved:
        self._settings.check()
        if self._settings.offline:
            return await self._resolve_offline(source, room)
        try:
            found = await self._resolve_file(source) if source.path else None
            return found or await self._resolve_tree(source, room)
        except NotFound as missing:
            if missing.reason == _NO_REVISION and (there := await self._revisions(source)):
                raise NotFound(missing.message, hint=there, reason=missing.reason) from missing
            raise

    async def _revisions(self, source: HubModel) -> str:
        """Which there are, in words; empty where the hub does not say it."""
        url = URL(f"{self._settings.endpoint}/api/models/{source.repo}/refs", encoded=True)
        try:
            authorization = await self._authorization(str(url))
            async with self._client.transport.request("GET", url, authorization=authorization) as answer:
                if answer.status != 200:
                    return ""
                refs = _Refs.model_validate_json(await answer.body(PAGE_BYTES_MAX, "its revisions"))
        except (RemudaError, ValidationError):  # It was only asked for a hint.
            return ""
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        listed = f"it has {', '.join(names[:_NAMED_MAX])}" if names else ""
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        return did_you_mean(source.revision, names, f"{listed}{more}")

    @property
    def _cache(self) -> HubCache:
        return HubCache(self._settings.cache)

    def owns(self, url: str) -> bool:
        """Whether it is the address of a file at the hub, as `url` makes them."""
        path = url.removeprefix(f"{self._settings.endpoint}/")
        return path != url and bool(_RESOLVE.match(path))

    async def supplier(self, url: str) -> HttpSupplier:
        """Of one file at the hub."""
        repo, path = _of_resolve_url(url.removeprefix(f"{self._settings.endpoint}/"))
        authorization = await self._authorization(url)
        explain = partial(self._explain, repo, "", path, authorization is not None)
        return HttpSupplier(self._client, url, authorization, explain)

    async def cached(self, url: str, file: RemoteFile) -> Path | None:
        """Where another program has left the same file, as far as its name and size tell."""
        if not self.owns(url) or not file.sha256:
            return None
        repo, _ = _of_resolve_url(url.removeprefix(f"{self._settings.endpoint}/"))
        return await run_sync(self._cache.blob, repo, file.sha256, file.size)

    def url(self, source: HubModel) -> str:
        revision = source.revision or DEFAULT_REVISION
        return (
            f"{self._settings.endpoint}/{source.repo}/resolve/{quote(revision, safe='')}/{quote(source.path)}"
        )

    async def _resolve_file(self, source: HubModel) -> Resolved | None:
        """One file, with the other parts of its model; None when the path is not a file."""
        names = parts_of(source.path)
        try:
            first = await self._head(replace(source, path=names[0]))
        except NotFound as missing:
            if missing.reason != "EntryNotFound":
                raise
            folder = await self._tree(source)
            if any(file.path.startswith(f"{source.path}/") for file in folder[1]):
                return None
            hint = missing_file_hint(source.path, folder[1])
            raise NotFound(missing.message, hint=hint, reason=missing.reason) from missing
        pinned = replace(source, repo=first.repo, revision=first.commit)
        heads = [first, *[await self._head(replace(pinned, path=name)) for name in names[1:]]]
        files = tuple(
            RemoteFile(name, head.size, head.sha256, (self.url(replace(pinned, path=name)),))
            for name, head in zip(names, heads, strict=True)
        )
        return self._resolved(source, pinned, files)

    async def snapshot(self, source: HubModel) -> Resolved:
        """Every file of the repository, whatever it is."""
        self._settings.check()
        if self._settings.offline:
            return await self._resolve_offline(source, None)
        pinned, files = await self._pinned_tree(source)
        return self._resolved(source, pinned, tuple(self._remote(pinned, file, "") for file in files))

    async def _resolve_tree(self, source: HubModel, room: AskRoom) -> Resolved:
        pinned, files = await self._pinned_tree(source)
        inside = [file for file in files if not source.path or file.path.startswith(f"{source.path}/")]
        if not inside:
            hint = missing_file_hint(source.path, files)
            raise NotFound(f"{source.repo} has no file {source.path!r}", hint=hint)
        nodes = await room() if needs_room(inside, source.quantisation) else ()
        chosen = choose_files(source.repo, _below(inside, source.path), source.quantisation, nodes)
        remote = tuple(self._remote(pinned, file, source.path) for file in chosen.files)
        return replace(self._resolved(source, pinned, remote), choice=chosen.reason)

    async def _pinned_tree(self, source: HubModel) -> tuple[HubModel, list[RepoFile]]:
        """The files of one commit."""
        repo, files = await self._tree(source)
        pinned = replace(source, repo=repo)
        if not files:
            raise NotFound(f"{source.repo} has no files")
        if not is_commit(source.revision):
            # The list is asked for again by its commit: a branch may move between two questions.
            head = await self._head(replace(pinned, path=files[0].path))
            pinned = replace(pinned, repo=head.repo, revision=head.commit)
            _, files = await self._tree(pinned)
        return pinned, files

    def _remote(self, pinned: HubModel, file: RepoFile, folder: str) -> RemoteFile:
        path = f"{folder}/{file.path}" if folder else file.path
        role = "mmproj" if is_projector(path) else ""
        return RemoteFile(file.path, file.size, file.sha256, (self.url(replace(pinned, path=path)),), role)

    def _resolved(self, source: HubModel, pinned: HubModel, files: tuple[RemoteFile, ...]) -> Resolved:
        for file in files:
            if fault := path_fault(file.path):
                raise Invalid(f"{source.repo} has a file that cannot be used, {file.path[:200]!r}: {fault}")
        words = (
            f"{source.repo} is now called {pinned.repo}; name it so: the old name may be another's one day"
        )
        renamed = (words,) if source.repo != pinned.repo else ()
        return Resolved(replace(source, repo=pinned.repo), pinned.revision, files, notes=renamed)

    async def _resolve_offline(self, source: HubModel, room: AskRoom | None) -> Resolved:
        """From the cache alone; without `room` all that it has."""
        commit = await run_sync(self._cache.commit, source.repo, source.revision or DEFAULT_REVISION)
        held = await run_sync(self._cache.files, source.repo, commit)
        if not held:
            raise NotFound(
                f"HF_HUB_OFFLINE is set, and the cache of Hugging Face has no {source.repo}",
                hint="unset HF_HUB_OFFLINE, or give the model as a file",
            )
        listed = [file for file, _ in held.values()]
        if room is None:
            chosen, reason = listed, ""
        elif source.path in held:
            names = tuple(name for name in parts_of(source.path) if name in held)
            chosen, reason = [held[name][0] for name in names], ""
        else:
            nodes = await room() if needs_room(listed, source.quantisation) else ()
            found = choose_files(source.repo, listed, source.quantisation, nodes)
            chosen, reason = list(found.files), found.reason
        files = tuple(
            RemoteFile(
                file.path,
                file.size,
                file.sha256,
                (str(LocalPath(str(held[file.path][1]))),),
                "mmproj" if is_projector(file.path) else "",
            )
            for file in chosen
        )
        pinned = replace(source, revision=commit)
        return replace(self._resolved(source, pinned, files), choice=reason)

    async def _head(self, source: HubModel) -> _Head:
        """NotFound with the hub's own code as its reason, and other refusals in plain words."""
        return await small_call(self._client, source.repo, partial(self._head_once, source))

    async def _head_once(self, source: HubModel) -> _Head:
        url = self.url(source)
        authorization = await self._authorization(url)
        async with self._client.transport.request(
            "HEAD", URL(url, encoded=True), authorization=authorization, relative_only=True
        ) as answer:
            if answer.status != 200 and "Location" not in answer.headers:
                await self._explain(
                    source.repo, source.revision, source.path, authorization is not None, answer
                )
                await raise_for_status(answer, str(source), self._client.clock.now())
            if answer.status == 200 and is_page(answer) and "X-Repo-Commit" not in answer.headers:
                raise _page_came(answer)
            commit = answer.headers.get("X-Repo-Commit", "")
            if not is_commit(commit):
                raise ContentRefused(
                    f"{answer.url.authority} does not say which commit {source} stands for",
                    hint="check HF_ENDPOINT: what answers there is not a hub",
                )
            repo, _ = _of_resolve_url(_below_endpoint(answer.url, self._settings.endpoint))
            return _Head(repo, commit, *_size_and_hash(answer.headers))

    async def _tree(self, source: HubModel) -> tuple[str, list[RepoFile]]:
        """The repository's present name, and all its files."""
        revision = quote(source.revision or DEFAULT_REVISION, safe="")
        url = URL(
            f"{self._settings.endpoint}/api/models/{source.repo}/tree/{revision}?recursive=true", encoded=True
        )
        repo, files = source.repo, list[RepoFile]()
        for _ in range(PAGES_MAX):
            answered, page, following = await small_call(
                self._client, source.repo, partial(self._tree_page, source, url)
            )
            repo = _of_tree_url(_below_endpoint(answered, self._settings.endpoint)) or repo
            files += page
            if following is None or following.origin() != url.origin():
                return repo, files
            if len(files) > FILES_MAX:
                break
            url = following
        raise Invalid(f"{source.repo} has more than {FILES_MAX} files", hint="name the file that you want")

    async def _tree_page(self, source: HubModel, url: URL) -> tuple[URL, list[RepoFile], URL | None]:
        authorization = await self._authorization(str(url))
        async with self._client.transport.request("GET", url, authorization=authorization) as answer:
            if answer.status != 200:
                await self._explain(source.repo, source.revision, "", authorization is not None, answer)
                await raise_for_status(answer, str(source), self._client.clock.now())
            if is_page(answer):
                raise _page_came(answer)
            body = await answer.body(PAGE_BYTES_MAX, f"the list of files of {source.repo}")
            link = _NEXT.search(answer.headers.get("Link", ""))
            following = answer.url.join(URL(link[1], encoded=True)) if link else None
            answered = answer.url
        try:
            entries = _TREE.validate_json(body)
        except ValidationError as error:
            raise ContentRefused(
                f"{url.authority} sent no list of the files of {source.repo}",
                hint="check HF_ENDPOINT: what answers there is not a hub",
            ) from error
        return answered, [_repo_file(entry) for entry in entries if entry.type == "file"], following

    async def _authorization(self, url: str) -> SecretStr | None:
        if (found := await self._find_token(url)) is not None:
            return found
        token = await run_sync(self._settings.token)
        return SecretStr(f"Bearer {token.get_secret_value()}") if token is not None else None

    async def _explain(self, repo: str, revision: str, path: str, known: bool, answer: Response) -> None:
        """Raise what the hub's own words mean; return where it has none. `known`: we sent a token."""
        code = answer.headers.get("X-Error-Code", "")
        if answer.status == 429:
            raise _rate_limited(answer, known, _token_hint(self._settings.endpoint))
        error = _meaning(repo, revision, path, known, code, answer.status, URL(self._settings.endpoint))
        if error is not None:
            server_message = answer.headers.get("X-Error-Message", "")[:_MESSAGE_CHARS_MAX]
            error.details = (
                (f"{answer.url.authority} says: {server_message}",)
                if server_message.isprintable() and server_message
                else ()
            )
            raise error


def _token_hint(endpoint: str) -> str:
    """HF_ENDPOINT may name a mirror, or a hub within a company."""
    return f"set HF_TOKEN to a token of your account, or {entry_hint(endpoint)}"


def _meaning(
    repo: str, revision: str, path: str, known: bool, code: str, status: int, hub: URL
) -> RemudaError | None:
    host = str(hub.origin()).partition("://")[2]  # With its port, where that is not the usual one.
    match code, status:
        case "GatedRepo", _ if known:
            return Forbidden(
                f"{repo} is gated, and the account of the token that is used has no access to it",
                hint=f"ask for access at {hub / repo} with that account",
            )
        case "GatedRepo", _:
            return Unauthorized(
                f"{repo} is gated: its owner requires accepting conditions first",
                hint=f"accept them at {hub / repo}, then {_token_hint(str(hub))}",
            )
        case "RevisionNotFound", _:
            return NotFound(
                f"{repo} has no revision {revision or DEFAULT_REVISION!r}",
                hint="a revision is a branch, a tag or a whole commit",
                reason=_NO_REVISION,
            )
        case "EntryNotFound", _:
            return NotFound(f"{repo} has no file {path!r}", hint="check the name", reason=code)
        case ("RepoNotFound", _) | ("", 401) if known and status == 401 and not code:
            return Unauthorized(
                f"{host} refuses the token that is used",
                hint=f"make a new one; {_token_hint(str(hub))}",
            )
        case ("RepoNotFound", _) | ("", 401):
            private = "the token that is used may not see it" if known else "it is private"
            return NotFound(
                f"{host} has no repository {repo}, or {private}",
                hint="check owner and name"
                + ("" if known else f"; for a private one {_token_hint(str(hub))}"),
                reason=code,
            )
    return None


def _page_came(answer: Response) -> ContentRefused:
    """Asking again brings the same."""
    return ContentRefused(
        f"a web page came instead of the answer of {answer.url.authority}",
        hint="networks with a sign-in page answer so: sign in with a browser on the frontend's machine, or "
        "check HF_ENDPOINT and the proxy",
    )


def _rate_limited(answer: Response, known: bool, token_hint: str) -> RegistryBusy:
    reset = _RESET.search(answer.headers.get("RateLimit", ""))
    wait = reset[1] if reset else answer.headers.get("Retry-After", "")
    after = timedelta(seconds=int(wait)) if wait.isdecimal() else None
    more = "" if known else f"{token_hint}: accounts may ask more often"
    return RegistryBusy(f"{answer.url.authority} answers that it was asked too often", after, hint=more)


def _repo_file(entry: _TreeEntry) -> RepoFile:
    sha256 = entry.lfs.oid if entry.lfs is not None and _SHA256.fullmatch(entry.lfs.oid) else ""
    return RepoFile(entry.path, entry.size, sha256)


def _below(files: list[RepoFile], folder: str) -> list[RepoFile]:
    if not folder:
        return files
    return [replace(file, path=file.path.removeprefix(f"{folder}/")) for file in files]


def _size_and_hash(headers: Mapping[str, str]) -> tuple[int | None, str]:
    """Of a large file its own; of a small one, whose tag is a git id, the size alone."""
    tag = headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    size = headers.get("X-Linked-Size") or (
        "" if "Location" in headers else headers.get("Content-Length", "")
    )
    return int(size) if size.isdecimal() else None, tag if _SHA256.fullmatch(tag) else ""


def _below_endpoint(url: URL, endpoint: str) -> str:
    return str(url).removeprefix(f"{endpoint}/")


def _of_resolve_url(path: str) -> tuple[str, str]:
    """Repository and file of OWNER/NAME/resolve/REVISION/FILE."""
    owner, _, rest = path.partition("/")
    name, _, rest = rest.partition("/resolve/")
    return f"{owner}/{name}", unquote(rest.partition("/")[2].partition("?")[0])


def _of_tree_url(path: str) -> str:
    """The repository of api/models/OWNER/NAME/tree/REVISION."""
    found = re.fullmatch(r"api/models/([^/]+/[^/]+)/tree/.*", path)
    return found[1] if found else ""
