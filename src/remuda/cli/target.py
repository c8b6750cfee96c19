"""Which frontend a command talks to: the one that is named, else the one of this machine's data folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from remuda.assembly.settings.forms import base_url
from remuda.cli.invocation import ClientOptions
from remuda.cli.options import ask_for, data_folder
from remuda.core.errors import FrontendUnreachable, Misconfigured
from remuda.host.folder import DataFolder, read_json

_START_OR_NAME = "start it with `remuda up`, or name a frontend with --url or REMUDA_URL"


@dataclass(frozen=True, slots=True)
class Target:
    url: str  # Without a slash at the end.
    api_key: SecretStr | None = None
    ca: Path | None = None
    key_source: str = ""  # Where the key was found, for people.
    url_source: str = ""  # The same of the address.

    @property
    def shown(self) -> str:
        """The address, and where it comes from: an error may be in that setting."""
        return f"{self.url} (from {self.url_source})" if self.url_source else self.url


class NotRunningHere(FrontendUnreachable):
    """No frontend was named, and none runs on this machine's data folder."""


class EndedHere(NotRunningHere):
    """The one that ran there was killed or lost its machine: a clean shutdown removes its endpoint file."""


def find_target(options: ClientOptions, environ: Mapping[str, str]) -> Target:
    """Raises NotRunningHere when there is nothing to talk to, Misconfigured when what is set is no use."""
    key = _given_key(options, environ)
    # A key that is given as an argument is moved to the environment, where other users cannot read it.
    key_source = "" if key is None else "--api-key" if options.api_key else "--api-key or REMUDA_API_KEY"
    given_ca = options.ca or environ.get("REMUDA_CA")
    ca = Path(given_ca).expanduser() if given_ca else None
    named = options.url or environ.get("REMUDA_URL")
    if named:
        source = "--url" if options.url else "REMUDA_URL"
        return Target(checked_url(named, source), key, ca, key_source, source)
    local = _local(data_folder({"data_dir": options.data_dir}, environ))
    if key is None:
        key, key_source = local.api_key, local.key_source
    return Target(local.url, key, ca or local.ca, key_source, local.url_source)


def checked_url(text: str, source: str) -> str:
    """The URL of the frontend itself, without /v1 or a slash at its end; Misconfigured, naming its source,
    when it is not a URL."""
    if _usable(text):
        return base_url(text)
    if "://" not in text and _usable(f"http://{text}"):
        raise Misconfigured(f"{source}: {text} has no http://; did you mean http://{text}?")
    raise Misconfigured(f"{source}={text!r} is not a URL; expected http(s)://HOST[:PORT]")


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and url.isascii() and not any(char.isspace() for char in url)


def _given_key(options: ClientOptions, environ: Mapping[str, str]) -> SecretStr | None:
    key = ask_for("API key") if options.api_key == "-" else options.api_key or environ.get("REMUDA_API_KEY")
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise Misconfigured("the API key contains characters that no key has", hint="copy it again")
    return SecretStr(key)


def _local(folder: DataFolder) -> Target:
    values = read_json(folder.endpoint)
    if not values:
        raise _nothing_here(folder)
    url, key, pid, ca = (values.get(name) for name in ("url", "api_key", "pid", "ca"))
    if not isinstance(url, str) or not isinstance(pid, int):
        raise Misconfigured(f"{folder.endpoint} has no usable address of the frontend", hint="remove it")
    if not alive(pid):
        raise EndedHere(
            f"the frontend that ran here did not shut down cleanly: its process {pid} has ended "
            f"(data folder {folder.root})",
            hint="start it again with `remuda up` or `remuda frontend`, as before, "
            "or name another with --url or REMUDA_URL",
        )
    return Target(
        checked_url(url, str(folder.endpoint)),
        SecretStr(key) if isinstance(key, str) else None,
        Path(ca) if isinstance(ca, str) else None,
        str(folder.endpoint) if isinstance(key, str) else "",
        str(folder.endpoint),
    )


def _nothing_here(folder: DataFolder) -> NotRunningHere:
    """A machine that has joined a fleet gets no advice to begin another."""
    joined = read_json(folder.joined).get("register_to")
    if not isinstance(joined, str) or not joined:
        words = f"remuda up is not running here (data folder {folder.root})"
        return NotRunningHere(words, hint=_START_OR_NAME)
    return NotRunningHere(
        f"this machine is a worker of {joined}; no frontend was given",
        hint=f"set REMUDA_URL={joined}, and REMUDA_API_KEY to one of its admin keys, or run this there",
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # Another user's process, so it lives.
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Ended, and not yet collected by its parent: in a container that may take long. Known on Linux only."""
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
    except OSError:
        return False
    return after_the_name.split()[:1] == [b"Z"]
