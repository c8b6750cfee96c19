"""What opens private sources: one file for all of them, by host or by the beginning of an address.

    ["huggingface.co"]
    token = "hf_..."

    ["https://files.example.org/models/"]
    username = "me"
    password = "..."

    ["s3://models"]
    access_key_id = "..."
    secret_access_key = "..."
    endpoint = "https://s3.example.org"

The file is read whenever it is needed, so that it can be edited at any time. What is in it stays in this
process, and goes to the place that it is for and nowhere else.
"""

import base64
import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.core.field_errors import field_error
from remuda.oci.auth import Credentials, Keys
from remuda.oci.reference import canonical_registry
from remuda.oci.transport import is_loopback


def entry_hint(place: str) -> str:
    """What to write where, for a place whose files are private: HOST[:PORT], or an address."""
    return (
        f'write ["{_table(place)}"] and below it token = "..." (or username and password) into '
        "credentials.toml in the frontend's data folder, or into the file named with --credentials-file; the "
        "format is in docs/reference/sources.md"
    )


def _table(place: str) -> str:
    """The table that an address finds. A place without a scheme is for encrypted connections, and for this
    machine."""
    if "://" not in place:
        return place
    return str(URL(place).origin()).removeprefix("https://")


FILE_BYTES_MAX: Final = 1 << 20
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SourceCredential(BaseModel):
    """Of one place. Which fields it needs depends on the kind of place."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    token: SecretStr = SecretStr("")
    username: str = ""
    password: SecretStr = SecretStr("")
    access_key_id: str = ""
    secret_access_key: SecretStr = SecretStr("")
    session_token: SecretStr = SecretStr("")
    endpoint: str = ""
    region: str = ""

    @property
    def authorization(self) -> SecretStr | None:
        """The header for a web server; None where this is for something else."""
        if self.token.get_secret_value():
            return SecretStr(f"Bearer {self.token.get_secret_value()}")
        return basic_header(self.username, self.password) if self.username else None


def basic_header(username: str, password: SecretStr) -> SecretStr:
    pair = f"{username}:{password.get_secret_value()}"
    return SecretStr(f"Basic {base64.b64encode(pair.encode()).decode()}")


@dataclass(frozen=True, slots=True)
class SourceCredentials:
    """Credentials by place; of several that fit, the longest."""

    places: tuple[tuple[str, SourceCredential], ...] = ()

    def find(self, url: str) -> SourceCredential | None:
        fitting = [(len(place), number) for number, (place, _) in enumerate(self.places) if _fits(place, url)]
        return self.places[max(fitting)[1]][1] if fitting else None

    def authorization(self, url: str) -> SecretStr | None:
        found = self.find(url)
        return found.authorization if found is not None else None


_FILE: Final = TypeAdapter(
    dict[Annotated[str, Field(min_length=1, max_length=1_000)], SourceCredential],
    config=ConfigDict(hide_input_in_errors=True),
)


class CredentialsFile:
    """A file that need not exist. Misconfigured when others may read it, or it cannot be understood."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    async def read(self) -> SourceCredentials:
        return await run_sync(self._read)

    def _read(self) -> SourceCredentials:
        text = _private_text(self._path) if self._path is not None else None
        if text is None:
            return SourceCredentials()
        try:
            document = _FILE.validate_python(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise Misconfigured(f"{self._path} is not TOML: {error}", hint="correct or remove it") from None
        except ValidationError as error:
            fault = field_error(error.errors(include_url=False, include_input=False)[0], subject="it")
            raise Misconfigured(f"{self._path}: {fault}", hint="correct or remove it") from None
        return SourceCredentials(tuple(document.items()))


class RegistryKeys:
    """Registries: the credentials file first, then what `docker login` and its relatives keep."""

    def __init__(self, file: CredentialsFile, others: Keys) -> None:
        self._file = file
        self._others = others

    async def find(self, registry: str) -> Credentials | None:
        credentials = await self._file.read()
        for place, found in credentials.places:
            host = place.removeprefix("oci://").removeprefix("https://").rstrip("/")
            if canonical_registry(host) != registry:
                continue
            if found.token.get_secret_value() and not found.username:
                return Credentials("", SecretStr(""), found.token)
            secret = found.password if found.password.get_secret_value() else found.token
            return Credentials(found.username, secret)
        return await self._others.find(registry)


def _private_text(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Misconfigured(f"{path} is not a file")
        if mode & _OTHERS:
            raise Misconfigured(
                f"{path} holds credentials, and others on this machine may read it (mode {mode & 0o777:04o})",
                hint=f"chmod 600 {path}",
            )
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise Misconfigured(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Misconfigured(f"{path} is not UTF-8") from None


def _fits(place: str, address: str) -> bool:
    """`HOST[:PORT][/PATH]` is for encrypted connections, and for this machine; clear text to anywhere else
    takes a place that is written with http://."""
    try:
        wanted, url = URL(place if "://" in place else f"https://{place}"), URL(address)
    except ValueError:
        return False
    if "://" not in place and url.scheme == "http" and is_loopback(url.host or ""):
        wanted = URL(f"http://{place}")
    if wanted.scheme != url.scheme or wanted.host != url.host or wanted.port != url.port:
        return False
    path = wanted.path.rstrip("/")
    return not path or url.path == path or url.path.startswith(f"{path}/")
