"""How to connect to the bus: addresses, logins, TLS files. No text made here holds a secret."""

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import SecretStr

from remuda.bus.credentials import Account, BusUser
from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured

_SCHEMES = ("nats", "tls")
_PORT = 4222


@dataclass(frozen=True, slots=True)
class Anonymous:
    pass


@dataclass(frozen=True, slots=True)
class UserPassword:
    user: str
    password: SecretStr


@dataclass(frozen=True, slots=True)
class BusToken:
    token: SecretStr


@dataclass(frozen=True, slots=True)
class UserJwt:
    jwt: str = field(repr=False)
    seed: SecretStr

    def __post_init__(self) -> None:
        if not self.jwt or not self.seed.get_secret_value():
            missing = "seed" if self.jwt else "JWT"
            raise Misconfigured(
                f"the bus user's {missing} is missing", hint="set both JWT and seed, or neither"
            )


Login = Anonymous | UserPassword | BusToken | UserJwt

AuthSource = Callable[[], Login]
"""Asked at every connect, so that credentials renewed meanwhile are the ones that are used."""


def fixed(login: Login) -> AuthSource:
    return lambda: login


anonymous: AuthSource = fixed(Anonymous())


def creds_file(path: Path) -> AuthSource:
    """The user in a NATS creds file, read at each connect. Refuses at once a file that holds none."""

    def read() -> Login:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"the bus credentials file {path} cannot be read") from error
        jwt, seed = (_block(text, title) for title in ("NATS USER JWT", "USER NKEY SEED"))
        if not jwt or not seed:
            raise Misconfigured(
                f"{path} is not a NATS credentials file", hint="it holds a user JWT and its seed"
            )
        return UserJwt(jwt, SecretStr(seed))

    read()
    return read


def issued(credentials: Callable[[], BusUser]) -> AuthSource:
    """Credentials that are renewed elsewhere: whatever the callable returns at that moment."""

    def read() -> Login:
        held = credentials()
        return UserJwt(held.jwt, held.seed)

    return read


def account_user(account: Account, name: str, clock: Clock) -> AuthSource:
    """A frontend's own user, minted anew at each connect."""
    return issued(lambda: account.mint_frontend(name, now=clock.now()))


@dataclass(frozen=True, slots=True)
class Servers:
    """Where to connect. The URLs carry no credentials; what they carried is `login`."""

    urls: tuple[str, ...]
    login: Login | None
    tls: bool

    def __str__(self) -> str:
        return ", ".join(self.urls)


def parse_servers(text: str) -> Servers:
    """One bus URL, or several with commas between. Raises Misconfigured for anything else."""
    parts = [part for url in text.split(",") if (part := _split_url(url.strip())) is not None]
    if len(parts) <= text.count(
        ","
    ):  # The whole text is masked: a stray comma may have cut a password in two.
        raise Misconfigured(f"{mask_url(text)} is not a bus address", hint="the form is nats://HOST:PORT")
    logins = [login for part in parts if (login := _url_login(part)) is not None]
    return Servers(
        urls=tuple(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts),
        login=logins[0] if logins else None,
        tls=any(part.scheme == "tls" for part in parts),
    )


def mask_url(text: str) -> str:
    """The URL or URLs with credentials hidden, for logs and messages."""
    urls = re.split(r",(?=\s*\w+://)", text)
    return ",".join(re.sub(r"^(\s*\w+://)?.*@", r"\1***@", url) for url in urls)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. Naming any of them means that TLS is wanted; certificate and key only go together."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise Misconfigured(
                f"the bus client {missing} is missing", hint="set both certificate and key, or neither"
            )

    @property
    def wanted(self) -> bool:
        return self.ca is not None or self.cert is not None

    def context(self) -> ssl.SSLContext:
        """Verifies the server, against `ca` if given, and shows the client certificate if there is one."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.ca, self.cert, self.key) if file is not None)
            raise Misconfigured(f"the bus TLS files cannot be used: {files}") from error
        return context


def _split_url(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        return None
    return parts if port is not None else parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{_PORT}")


def _url_login(parts: SplitResult) -> Login | None:
    if parts.username is None:
        return None
    if parts.password is None:
        return BusToken(SecretStr(unquote(parts.username)))
    return UserPassword(unquote(parts.username), SecretStr(unquote(parts.password)))


def _block(text: str, title: str) -> str:
    found = re.search(rf"-+BEGIN {title}-+\s+(\S+)\s+-+END {title}-+", text)
    return found.group(1) if found else ""
