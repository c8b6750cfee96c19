"""Where a model's files come from, as people write it. Pure: nothing is looked up.

Every source has one canonical text, which `parse_source` reads back. It never holds a password, a token or a
signature: it is stored, logged and shown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from remuda.core.errors import Invalid
from remuda.models.files import checked_path

SOURCE_CHARS_MAX: Final = 2_048
DEFAULT_TAG: Final = "latest"
OLLAMA_HOST: Final = "registry.ollama.ai"
OLLAMA_OWNER: Final = "library"

_HUB_HOSTS: Final = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_REPO_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_QUANTISATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_OLLAMA_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_UPLOAD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,63}")
# Parts of a query that grant access.
_SECRET_PARAMETER: Final = re.compile(
    r"(access_|private_|auth_)?token|api[_-]?key|auth|key|password|sig(nature)?"
    r"|x-(amz|goog)-(credential|security-token|signature)",
    re.IGNORECASE,
)
_SCHEMES: Final = "hf://, ollama://, https://, oci://, s3://, file://, github: or pypi:"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on Hugging Face. `path` is a file or folder in the repository; empty: the model it holds."""

    repo: str
    path: str = ""
    revision: str = ""
    quantisation: str = ""

    def __str__(self) -> str:
        path = f"/{quote(self.path)}" if self.path else ""
        revision = f"@{self.revision}" if self.revision else ""
        quantisation = f":{self.quantisation}" if self.quantisation else ""
        return f"hf://{self.repo}{path}{revision}{quantisation}"


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A model in Ollama's library. Without a host it is the one that is configured."""

    owner: str
    name: str
    tag: str = DEFAULT_TAG
    host: str = ""

    def __str__(self) -> str:
        host = f"{self.host}/" if self.host else ""
        owner = f"{self.owner}/" if self.owner != OLLAMA_OWNER or self.host else ""
        return f"ollama://{host}{owner}{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file on a web server."""

    url: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.url}{_fragment(self.sha256)}"


@dataclass(frozen=True, slots=True)
class GithubFile:
    """A file in a repository on GitHub. An empty branch means `main`."""

    owner: str
    repo: str
    path: str
    branch: str = ""

    def __str__(self) -> str:
        branch = f"@{self.branch}" if self.branch else ""
        return f"github:{self.owner}/{self.repo}/{quote(self.path)}{branch}"


@dataclass(frozen=True, slots=True)
class OciModel:
    """A model in an OCI registry: [REGISTRY/]REPOSITORY[:TAG][@DIGEST]."""

    reference: str

    def __str__(self) -> str:
        return f"oci://{self.reference}"


@dataclass(frozen=True, slots=True)
class BucketObject:
    """An object, or all below a key that ends with a slash, in storage that speaks S3."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{quote(self.key)}"


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file or folder on the frontend's machine."""

    path: str

    def __str__(self) -> str:
        return f"file://{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file in a wheel of a Python package."""

    package: str
    version: str
    path: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}!{self.path}{_fragment(self.sha256)}"


@dataclass(frozen=True, slots=True)
class UploadedFiles:
    """Files that were uploaded to a frontend, under this id."""

    upload: str

    def __str__(self) -> str:
        return f"upload:{self.upload}"


ModelSource = (
    HubModel
    | OllamaModel
    | WebFile
    | GithubFile
    | OciModel
    | BucketObject
    | LocalPath
    | WheelFile
    | UploadedFiles
)


def is_source(text: str) -> bool:
    """Whether it is written as a source, well-formed or not, rather than as the name of a model."""
    lowered = text.strip().lower()
    return "://" in lowered or lowered.startswith(tuple(_PREFIXES))


def parse_source(text: str) -> ModelSource:
    """Invalid, naming the fault and the right form, for anything that is no source of models."""
    text = text.strip()
    if not text or len(text) > SOURCE_CHARS_MAX or not text.isprintable():
        raise Invalid(
            f"a source has 1 to {SOURCE_CHARS_MAX} printable characters", hint=f"begin with {_SCHEMES}"
        )
    scheme, separator, rest = text.partition("://")
    if separator and (parse := _PARSERS.get(scheme.lower())):
        return parse(rest, text)
    for prefix, parse in _PREFIXES.items():
        if text.lower().startswith(prefix):
            return parse(text[len(prefix) :], text)
    fault = f"{scheme}:// is not a kind of source" if separator else f"{text!r} is not a source"
    raise Invalid(f"{fault} that models come from", hint=f"begin with {_SCHEMES}")


def _hub(rest: str, text: str) -> ModelSource:
    name, at, suffix = rest.partition("@")
    name, _, early = name.partition(":")
    suffix, _, late = suffix.partition(":")
    return _hub_model(text, name.strip("/").split("/"), suffix if at else "", early or late)


def _hub_model(text: str, parts: list[str], revision: str, quantisation: str) -> HubModel:
    path = [unquote(part) for part in parts[2:]]
    if not path and revision:  # Also written OWNER/REPO@REVISION/FILE.
        revision, path = _split_revision(revision)
    if len(parts) < 2 or not all(_REPO_PART.fullmatch(part) for part in parts[:2]):
        raise Invalid(
            f"{text!r} does not name a repository",
            hint="the form is hf://OWNER/REPOSITORY[/FILE][@REVISION][:QUANTISATION]",
        )
    revision = unquote(revision)
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise Invalid(f"{revision!r} in {text!r} is not a branch, tag or commit")
    if quantisation and not _QUANTISATION.fullmatch(quantisation):
        raise Invalid(f"{quantisation!r} in {text!r} is not a quantisation", hint="such as Q4_K_M or Q8_0")
    file = checked_path("/".join(path), text) if path else ""
    if file.endswith(".gguf") and quantisation:
        raise Invalid(f"{text!r} names a file and a quantisation", hint="give one of them")
    return HubModel("/".join(parts[:2]), file, revision, quantisation.upper() if quantisation else "")


def _split_revision(revision: str) -> tuple[str, list[str]]:
    """`refs/pr/3` has slashes of its own; what follows any other revision's first slash is a path."""
    parts = revision.split("/")
    taken = 3 if parts[0] == "refs" else 1
    return "/".join(parts[:taken]), [unquote(part) for part in parts[taken:]]


def _hub_page(path: str, text: str) -> ModelSource:
    """An address as a browser shows it: a repository, or a folder or file in it."""
    match path.strip("/").split("/"):
        case [owner, repo]:
            name, _, quantisation = repo.partition(":")
            return _hub_model(text, [owner, name], "", quantisation)
        case [owner, repo, "tree" | "blob" | "resolve" | "raw", *rest] if rest:
            revision, file = _split_revision("/".join(rest))
            return _hub_model(text, [owner, repo, *file], revision, "")
        case _:
            raise Invalid(
                f"{text!r} is not the page of a model", hint="the form is hf://OWNER/REPOSITORY[/FILE]"
            )


def _web(rest: str, text: str) -> ModelSource:
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Invalid(f"{text!r} is not a usable URL", hint="the form is https://HOST[:PORT]/PATH")
    if parts.username is not None or parts.password is not None:
        raise Invalid(
            "a URL with a user name or password in it is not accepted: it would be stored and logged",
            hint="put them into the credentials file",
        )
    secret = [name for name, _ in parse_qsl(parts.query) if _SECRET_PARAMETER.fullmatch(name)]
    if secret:
        raise Invalid(
            f"the URL carries a credential ({secret[0]}=...), which would be stored and logged",
            hint="leave it out and put it into the credentials file",
        )
    sha256 = _sha256(parts.fragment, text)
    if parts.hostname in _HUB_HOSTS and not sha256:
        return _hub_page(parts.path, text)
    if page := _github_page(parts.hostname or "", parts.path, text):
        return page
    if parts.hostname in ("ollama.com", "www.ollama.com"):
        return _ollama(parts.path.strip("/"), text)
    if not parts.path.strip("/") or parts.path.endswith("/"):
        raise Invalid(f"{text!r} does not name a file", hint="give the address of the file itself")
    return WebFile(parts._replace(fragment="").geturl(), sha256)


def _github_page(host: str, path: str, text: str) -> GithubFile | None:
    match path.strip("/").split("/"):
        case [owner, repo, "blob" | "raw", branch, *file] if host == "github.com" and file:
            return GithubFile(owner, repo, checked_path(unquote("/".join(file)), text), branch)
        case _:
            return None


def _github(rest: str, text: str) -> ModelSource:
    name, _, branch = rest.removeprefix("//").partition("@")
    owner, _, path = name.strip("/").partition("/")
    repo, _, path = path.partition("/")
    good = _REPO_PART.fullmatch(owner) and _REPO_PART.fullmatch(repo) and path
    if not good or (branch and (not _REVISION.fullmatch(branch) or ".." in branch)):
        raise Invalid(
            f"{text!r} does not name a file on GitHub",
            hint="the form is github:OWNER/REPOSITORY/PATH[@BRANCH]",
        )
    return GithubFile(owner, repo, checked_path(unquote(path), text), branch)


def _ollama(rest: str, text: str) -> ModelSource:
    parts = rest.strip("/").split("/")
    name, _, tag = parts[-1].partition(":")
    owner = parts[-2] if len(parts) > 1 else OLLAMA_OWNER
    host = parts[0] if len(parts) > 2 else ""
    good = len(parts) <= 3 and _OLLAMA_NAME.fullmatch(name) and _OLLAMA_NAME.fullmatch(owner)
    if not good or (tag and not _TAG.fullmatch(tag)) or (host and not _HOST.fullmatch(host)):
        raise Invalid(
            f"{text!r} does not name a model of Ollama", hint="the form is ollama://[OWNER/]NAME[:TAG]"
        )
    return OllamaModel(owner, name, tag or DEFAULT_TAG, host.lower())


def _oci(rest: str, text: str) -> ModelSource:
    if not rest or "/" not in rest or any(char in rest for char in " ?#\\"):
        raise Invalid(
            f"{text!r} does not name an artifact", hint="the form is oci://REGISTRY/REPOSITORY[:TAG][@DIGEST]"
        )
    return OciModel(rest)


def _bucket(rest: str, text: str) -> ModelSource:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or not key.strip("/"):
        raise Invalid(f"{text!r} does not name an object", hint="the form is s3://BUCKET/KEY")
    folder = "/" if key.endswith("/") else ""
    return BucketObject(bucket, checked_path(unquote(key.rstrip("/")), text) + folder)


def _file(rest: str, text: str) -> ModelSource:
    path = unquote(rest.removeprefix("localhost"))
    if not path.startswith("/") or "\0" in path or not path.strip("/"):
        raise Invalid(
            f"{text!r} does not name a file by its whole path",
            hint="the form is file:///FOLDER/FILE, on the machine of the frontend",
        )
    return LocalPath(path)


def _wheel(rest: str, text: str) -> ModelSource:
    requirement, _, place = rest.partition("!")
    path, _, fragment = place.partition("#")
    package, _, version = requirement.partition("==")
    if not _PACKAGE.fullmatch(package) or not _VERSION.fullmatch(version) or not path:
        raise Invalid(
            f"{text!r} does not name a file in a wheel",
            hint="the form is pypi:PACKAGE==VERSION!PATH/IN/WHEEL",
        )
    package = re.sub(r"[-_.]+", "-", package).lower()
    return WheelFile(package, version, checked_path(path, text), _sha256(fragment, text))


def _uploaded(rest: str, text: str) -> ModelSource:
    return UploadedFiles(checked_upload(rest))


def checked_upload(upload: str) -> str:
    """The id itself. Invalid for one that no upload can have."""
    if not _UPLOAD.fullmatch(upload):
        raise Invalid(
            f"{upload[:80]!r} is not the id of an upload",
            hint="it has 8 to 64 of the characters A-Z a-z 0-9 _ and -",
        )
    return upload


def _sha256(fragment: str, text: str) -> str:
    if not fragment:
        return ""
    name, _, value = fragment.partition("=")
    if name != "sha256" or not _SHA256.fullmatch(value.lower()):
        raise Invalid(
            f"#{fragment[:80]} at the end of {text.partition('#')[0]!r} is not a checksum",
            hint="the form is #sha256= followed by 64 characters out of 0-9 and a-f",
        )
    return value.lower()


def _fragment(sha256: str) -> str:
    return f"#sha256={sha256}" if sha256 else ""


_Parse = Callable[[str, str], ModelSource]
_PARSERS: Final[dict[str, _Parse]] = {
    "hf": _hub,
    "huggingface": _hub,
    "ollama": _ollama,
    "http": _web,
    "https": _web,
    "oci": _oci,
    "s3": _bucket,
    "file": _file,
    "github": _github,
}
_PREFIXES: Final[dict[str, _Parse]] = {
    "hf.co/": _hub,
    "huggingface.co/": _hub_page,
    "github:": _github,
    "pypi:": _wheel,
    "upload:": _uploaded,
}
