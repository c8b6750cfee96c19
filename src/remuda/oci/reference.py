"""Names of images and of the other places backends come from. Pure: nothing is looked up."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from remuda.core.errors import Invalid
from remuda.oci import limits

DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")

_HUB_ALIASES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_DIGEST_CHARS = {"sha256": 64, "sha512": 128}
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?")
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_NAME}(?:/{_NAME})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Reference:
    """An image's full name. A digest outranks a tag; with neither given the tag is `latest`."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def version(self) -> str:
        """What the registry is asked for: the digest where there is one."""
        return self.digest or self.tag or DEFAULT_TAG

    def pinned(self, digest: str) -> "Reference":
        return replace(self, digest=digest)


@dataclass(frozen=True, slots=True)
class OciImage:
    reference: Reference


@dataclass(frozen=True, slots=True)
class OciFile:
    """An image saved to this machine's disk: docker-archive or OCI layout, as tar or folder."""

    path: Path


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar of the files themselves, compressed or not: at an http(s) URL, or on this machine."""

    location: str | Path


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path


ImageSource = OciImage | OciFile | Archive | Folder


def parse_source(text: str) -> ImageSource:
    """Where a backend's files come from. Invalid, with the fault named, for anything else.

    A name without any slash is refused: it is more likely an entry of a gallery than an image.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _without_scheme(text)
    match scheme.lower():
        case "oci":
            return OciImage(parse_reference(rest))
        case "ocifile":
            return OciFile(_path(rest, text))
        case "file":
            return _local(_path(unquote(rest.removeprefix("localhost")), text))
        case "http" | "https":
            return _remote_archive(text)
        case _:
            raise Invalid(
                f"{text!r} begins with {scheme}://, which is no place backends come from",
                hint="use oci://, ocifile://, http(s)://, file:// or a folder's path",
            )


def parse_reference(text: str) -> Reference:
    """`[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`; without a registry it is Docker Hub's."""
    if not text or len(text) > limits.REFERENCE_CHARS_MAX:
        raise Invalid(
            f"an image reference has 1 to {limits.REFERENCE_CHARS_MAX} characters, this one {len(text)}"
        )
    name, at, digest = text.partition("@")
    registry, path = _split_registry(name)
    repository, colon, tag = path.partition(":")
    registry = canonical_registry(registry)
    if registry == DOCKER_HUB:
        repository = repository if "/" in repository else f"library/{repository}"
    _check_registry(registry, text)
    _check_repository(repository, text)
    if colon and not (_TAG.fullmatch(tag) and len(tag) <= limits.TAG_CHARS_MAX):
        raise Invalid(
            f"{tag!r} in {text!r} is not a tag",
            hint=f"a tag has up to {limits.TAG_CHARS_MAX} letters, digits and . _ -",
        )
    checked = parse_digest(digest) if at else None
    return Reference(registry, repository, tag or (None if checked else DEFAULT_TAG), checked)


def canonical_registry(name: str) -> str:
    """The one name under which a registry is known here."""
    lowered = name.lower()
    return DOCKER_HUB if lowered in _HUB_ALIASES else lowered


def parse_digest(text: str) -> str:
    """The digest itself, once its form is right: it may then be used in paths and URLs."""
    algorithm, _, value = text.partition(":")
    length = _DIGEST_CHARS.get(algorithm)
    if length is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", value):
        raise Invalid(
            f"{text[:160]!r} is not a digest",
            hint="a digest is sha256: followed by 64 characters out of 0-9 and a-f",
        )
    return text


def has_archive_suffix(path: str) -> bool:
    return path.lower().endswith(ARCHIVE_SUFFIXES)


def _split_registry(name: str) -> tuple[str, str]:
    """The first part is a registry only if it could not be a part of a repository."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or any(mark in first for mark in ".:[") or first != first.lower()):
        return first, rest
    return DOCKER_HUB, name


def _check_registry(registry: str, text: str) -> None:
    host = _HOST.fullmatch(registry)
    if host is None or int(host["port"] or 1) not in range(1, _PORT_MAX + 1):
        raise Invalid(
            f"{registry!r} in {text!r} is not a registry", hint="a registry is HOST, HOST:PORT or [IPV6]:PORT"
        )


def _check_repository(repository: str, text: str) -> None:
    if _REPOSITORY.fullmatch(repository) and len(repository) <= limits.REPOSITORY_CHARS_MAX:
        return
    if repository != repository.lower():
        raise Invalid(
            f"the repository in {text!r} has capital letters, which no registry allows",
            hint=f"try {text.replace(repository, repository.lower())!r}",
        )
    raise Invalid(
        f"{repository!r} in {text!r} is not a repository",
        hint="a repository is made of lower-case letters and digits, joined by / . _ -",
    )


def _without_scheme(text: str) -> ImageSource:
    if text.startswith(("/", "./", "../")) or text in (".", ".."):
        return _local(_path(text, text))
    if "/" not in text:
        raise Invalid(
            f"{text!r} is neither an image nor a path",
            hint=f"a gallery's entry is asked for by its name alone; an image of Docker Hub is "
            f"oci://library/{text.lower()}, a folder ./{text}",
        )
    return OciImage(parse_reference(text))


def _local(path: Path) -> Archive | Folder:
    return Archive(path) if has_archive_suffix(path.name) else Folder(path)


def _path(text: str, whole: str) -> Path:
    if not text or "\0" in text:
        raise Invalid(
            f"{whole!r} names no path", hint="write the path after ://, such as file:///srv/backend"
        )
    return Path(text)


def _remote_archive(text: str) -> Archive:
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Invalid(f"{text!r} is not a usable URL", hint="the form is http(s)://HOST[:PORT]/PATH.tar.gz")
    if parts.username is not None or parts.password is not None:
        raise Invalid("a URL with a user or password in it is not taken: it would end up in logs and records")
    if not has_archive_suffix(parts.path):
        raise Invalid(
            f"{text!r} does not end like an archive", hint=f"known are {', '.join(ARCHIVE_SUFFIXES)}"
        )
    return Archive(text)
