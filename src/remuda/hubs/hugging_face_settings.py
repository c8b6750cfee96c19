"""Hugging Face as people have set it up for other programs: endpoint, token, cache. Reading blocks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.hubs.quantisations import RepoFile

ENDPOINT: Final = "https://huggingface.co"
TOKEN_BYTES_MAX: Final = 4_096
_YES: Final = frozenset({"1", "on", "yes", "true"})
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    return bool(_COMMIT.fullmatch(revision))


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What the environment says."""

    env: Mapping[str, str]

    @property
    def endpoint(self) -> str:
        return (self.env.get("HF_ENDPOINT") or ENDPOINT).strip().rstrip("/")

    def check(self) -> None:
        """Misconfigured when the endpoint cannot be used."""
        try:
            url = URL(self.endpoint)
            usable = url.scheme in ("http", "https") and bool(url.host) and not url.user
        except ValueError:
            usable = False
        if not usable:
            raise Misconfigured("HF_ENDPOINT is not an http(s) address, or has a user name in it")

    @property
    def offline(self) -> bool:
        return self.env.get("HF_HUB_OFFLINE", self.env.get("TRANSFORMERS_OFFLINE", "")).lower() in _YES

    @property
    def cache(self) -> Path | None:
        """The folder with a folder for each repository."""
        if named := self.env.get("HF_HUB_CACHE") or self.env.get("HUGGINGFACE_HUB_CACHE"):
            return Path(named)
        home = self._home()
        return home / "hub" if home is not None else None

    def token(self) -> SecretStr | None:
        """From HF_TOKEN, else from the file that `hf auth login` writes."""
        text = self.env.get("HF_TOKEN") or self.env.get("HUGGING_FACE_HUB_TOKEN") or self._token_file()
        text = text.strip()
        return SecretStr(text) if text and text.isprintable() else None

    def _token_file(self) -> str:
        home = self._home()
        named = self.env.get("HF_TOKEN_PATH")
        path = Path(named) if named else home / "token" if home is not None else None
        if path is None:
            return ""
        try:
            with path.open("rb") as file:
                return file.read(TOKEN_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""

    def _home(self) -> Path | None:
        if named := self.env.get("HF_HOME"):
            return Path(named)
        cache = self.env.get("XDG_CACHE_HOME")
        home = self.env.get("HOME")
        if cache or home:
            return Path(cache or f"{home}/.cache") / "huggingface"
        return None


class HubCache:
    """Files that other programs have fetched already: models--OWNER--NAME/{blobs,refs,snapshots}."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def blob(self, repo: str, sha256: str, size: int | None) -> Path | None:
        """A file of this content, unless its size tells that it is not. Who uses it checks the rest."""
        folder = self._repo(repo)
        path = folder / "blobs" / sha256 if folder is not None and _SHA256.fullmatch(sha256) else None
        if path is None or not path.is_file() or size not in (None, path.stat().st_size):
            return None
        return path

    def commit(self, repo: str, revision: str) -> str:
        """What a branch stood for when it was last fetched; empty: it never was."""
        folder = self._repo(repo)
        if folder is None or is_commit(revision):
            return revision if folder is not None else ""
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return commit if is_commit(commit) else ""

    def files(self, repo: str, commit: str) -> dict[str, tuple[RepoFile, Path]]:
        """Of a snapshot, by path, with where each lies."""
        folder = self._repo(repo)
        if folder is None or not is_commit(commit):
            return {}
        snapshot = folder / "snapshots" / commit
        found: dict[str, tuple[RepoFile, Path]] = {}
        for path in sorted(snapshot.rglob("*")):
            if path.is_file():
                blob = path.resolve()
                sha256 = blob.name if _SHA256.fullmatch(blob.name) else ""
                name = path.relative_to(snapshot).as_posix()
                found[name] = RepoFile(name, blob.stat().st_size, sha256), blob
        return found

    def _repo(self, repo: str) -> Path | None:
        folder = self._folder / f"models--{repo.replace('/', '--')}" if self._folder is not None else None
        return folder if folder is not None and folder.is_dir() else None
