"""Which package index this Python is configured to use: the environment and the files of uv and pip, in that
order. Nothing of it is stored or logged: addresses of indexes may hold passwords. Reading blocks on the disk.
"""

import configparser
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from pydantic import SecretStr
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.hubs.credentials import basic_header

log = structlog.get_logger(__name__)

DEFAULT_INDEX: Final = "https://pypi.org/simple"
_PIP_SECTIONS: Final = ("download", "install", "global")
_YES: Final = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A simple index: its address without credentials, and what lets us in."""

    url: URL
    authorization: SecretStr | None = None

    @property
    def name(self) -> str:
        return self.url.authority


def configured_indexes(env: Mapping[str, str]) -> tuple[PackageIndex, ...]:
    """The first that has a package is the one that it comes from. Misconfigured when there is none."""
    if env.get("UV_NO_INDEX", env.get("PIP_NO_INDEX", "")).lower() in _YES:
        raise Misconfigured(
            "no package index may be used: PIP_NO_INDEX or UV_NO_INDEX is set",
            hint="unset it, or bring the model as a file",
        )
    extra: list[str] = []
    default = ""
    for found in _configurations(env):
        extra += found.extra
        default = default or found.default
    urls = dict.fromkeys([*extra, default or DEFAULT_INDEX])
    return tuple(_index(url) for url in urls)


@dataclass(frozen=True, slots=True)
class _Configuration:
    default: str = ""
    extra: tuple[str, ...] = ()


def _configurations(env: Mapping[str, str]) -> Iterator[_Configuration]:
    """The most important first."""
    unnamed = [part.partition("=")[2] or part for part in env.get("UV_INDEX", "").split()]
    default = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or ""
    name, equals, url = default.partition("=")
    yield _Configuration(
        url if equals and "://" not in name else default,
        (*unnamed, *env.get("UV_EXTRA_INDEX_URL", "").split()),
    )
    yield _Configuration(env.get("PIP_INDEX_URL", ""), tuple(env.get("PIP_EXTRA_INDEX_URL", "").split()))
    for path in _uv_files(env):
        yield _uv_file(path)
    for path in _pip_files(env):
        yield _pip_file(path)


def _uv_files(env: Mapping[str, str]) -> Iterator[Path]:
    if named := env.get("UV_CONFIG_FILE"):
        yield Path(named)
        return
    for folder in (*_user_folders(env), *_system_folders(env)):
        yield folder / "uv" / "uv.toml"


def _pip_files(env: Mapping[str, str]) -> Iterator[Path]:
    if named := env.get("PIP_CONFIG_FILE"):
        yield Path(named)
    yield Path(sys.prefix) / "pip.conf"
    for folder in _user_folders(env):
        yield folder / "pip" / "pip.conf"
    if home := env.get("HOME"):
        yield Path(home) / ".pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    for folder in _system_folders(env):
        yield folder / "pip" / "pip.conf"


def _user_folders(env: Mapping[str, str]) -> Iterator[Path]:
    home = env.get("HOME")
    if folder := env.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"):
        yield Path(folder)
    if sys.platform == "darwin" and home:
        yield Path(home) / "Library" / "Application Support"


def _system_folders(env: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(part) for part in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if part)
    yield Path("/etc")


def _uv_file(path: Path) -> _Configuration:
    text = _read(path)
    if text is None:
        return _Configuration()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        log.warning("package_index_settings_skipped", file=str(path), reason="it is not TOML")
        return _Configuration()
    entries = [entry for entry in _listed(document.get("index")) if isinstance(entry, dict)]
    default = [entry for entry in entries if entry.get("default") is True]
    extra = [
        _text(entry.get("url")) for entry in entries if entry not in default and not entry.get("explicit")
    ]
    extra += map(_text, _listed(document.get("extra-index-url")))
    url = _text(default[0].get("url")) if default else _text(document.get("index-url"))
    return _Configuration(url, tuple(filter(None, extra)))


def _pip_file(path: Path) -> _Configuration:
    text = _read(path)
    if text is None:
        return _Configuration()
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        log.warning("package_index_settings_skipped", file=str(path), reason="it is not an INI file")
        return _Configuration()

    def value(name: str) -> str:
        found = (parser.get(section, name, fallback="") for section in _PIP_SECTIONS)
        return next(filter(None, found), "")

    return _Configuration(value("index-url"), tuple(value("extra-index-url").split()))


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        log.warning("package_index_settings_skipped", file=str(path), reason=type(error).__name__)
        return None


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _index(text: str) -> PackageIndex:
    try:
        url = URL(text.strip())
        usable = url.scheme in ("http", "https") and bool(url.host)
    except ValueError:
        usable = False
    if not usable:
        raise Misconfigured(
            "the package index that is configured is not an http(s) address",
            hint="correct UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_INDEX_URL, uv.toml or pip.conf",
        )
    authorization = basic_header(url.user or "", SecretStr(url.password or "")) if url.user else None
    return PackageIndex(url.with_user(None).with_fragment(None), authorization)
