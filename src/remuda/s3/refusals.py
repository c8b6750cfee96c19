"""What storage that speaks S3 means by a refusal, and what a person can do about it. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from remuda.core.errors import NotFound, RemudaError
from remuda.s3.account import S3Account, StorageRefused, StorageUnreached

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_CLOCKS_APART: Final = timedelta(minutes=5)  # Storage accepts up to a quarter of an hour.
_OTHER_REGION: Final = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
        "IncorrectEndpoint",
    }
)
_UNKNOWN_KEY: Final = frozenset({"InvalidAccessKeyId", "InvalidClientTokenId"})
_WRONG_SECRET: Final = "SignatureDoesNotMatch"
_OTHER_TOKEN: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})

_OF_KEYS: Final = _UNKNOWN_KEY | _OTHER_TOKEN | {_WRONG_SECRET}


@dataclass(frozen=True, slots=True)
class StorageRefusal:
    """One answer, or that there was none. `silent`: why no answer came; empty: one did."""

    status: int = 0
    body: str = ""
    region: str = ""  # Where the bucket is, by the answer's header.
    at: datetime | None = None  # By the storage's own clock.
    silent: str = ""
    hint: str = ""  # Of what was silent.

    @property
    def code(self) -> str:
        found = _CODE.search(self.body)
        return found[1] if found else ""


def explain(refusal: StorageRefusal, account: S3Account, key: str, now: datetime) -> RemudaError | None:
    """None: it says nothing that is known."""
    what = f"s3://{account.bucket}/{key}"
    if refusal.silent:
        hint = "; ".join(filter(None, (refusal.hint, _endpoint_hint(account))))
        return StorageUnreached(f"{account.place} cannot be reached: {refusal.silent}", hint=hint)
    if refusal.code == "NoSuchBucket":
        return NotFound(
            f"{account.place} has no bucket {account.bucket}",
            hint=f"check the name of the bucket; {_endpoint_hint(account)}",
        )
    if refusal.status == 404:
        return None
    if (apart := _apart(refusal, now)) is not None:
        return StorageRefused(
            f"{account.place} refuses requests from this machine, whose clock is {apart}",
            hint="set this machine's clock, best by NTP",
        )
    return _of_region(refusal, account) or _of_keys(refusal, account, what)


def _of_region(refusal: StorageRefusal, account: S3Account) -> RemudaError | None:
    found = _REGION.search(refusal.body)
    region = refusal.region or (found[1] if found else "")
    elsewhere = refusal.code in _OTHER_REGION or refusal.status in (301, 307)
    if not elsewhere and (not region or region == account.region or refusal.status != 400):
        return None
    if not region or region == account.region:
        return StorageRefused(
            f"{account.place} does not serve the bucket {account.bucket} under region {account.region}",
            hint=f"check {account.names.region} and {account.names.endpoint}",
        )
    return StorageRefused(
        f"the bucket {account.bucket} is in the region {region}, and {account.region} was asked",
        hint=f"set {account.names.region} to {region}",
    )


def _of_keys(refusal: StorageRefusal, account: S3Account, what: str) -> RemudaError | None:
    names, key = account.names, account.access_key
    known = "" if key is None else key.get_secret_value()
    if refusal.code in _UNKNOWN_KEY:
        return StorageRefused(f"{account.place} knows no key {known}", hint=f"correct {names.key}")
    if refusal.code == _WRONG_SECRET:
        return StorageRefused(
            f"the secret that is used with the key {known} is wrong, as {account.place} says",
            hint=f"correct {names.secret}",
        )
    if refusal.code in _OTHER_TOKEN:
        return StorageRefused(
            f"{account.place} refuses the session token that is used with the key {known}: it has expired or "
            "is another key's",
            hint="make a new one, and use it with its own key",
        )
    if refusal.code == "InvalidObjectState":
        return StorageRefused(f"{what} is archived", hint="have the storage restore it first")
    if refusal.status not in (401, 403):
        return None
    if not known:
        return StorageRefused(
            f"{what} may not be read without a key", hint=f"set {names.key} and {names.secret}"
        )
    if not refusal.code:
        hint = f"check {names.key} and {names.secret}, and what they may do"
        return StorageRefused(f"access denied to {what} with the key {known}", hint=hint)
    return StorageRefused(
        f"the key {known} may not do this with {what}",
        hint=f"give it the right to read and list the bucket, or set another {names.key}",
    )


def _apart(refusal: StorageRefusal, now: datetime) -> str | None:
    """How wrong this machine's clock is, where that is why."""
    if refusal.status not in (400, 401, 403):
        return None
    off = timedelta() if refusal.at is None else now - refusal.at
    if refusal.code in _OF_KEYS:
        return None
    if refusal.code != "RequestTimeTooSkewed" and abs(off) < _CLOCKS_APART:
        return None
    minutes = round(abs(off).total_seconds() / 60)
    if not minutes:
        return "wrong by too much"
    return f"{minutes} min {'ahead of' if off > timedelta() else 'behind'} the storage's"


def _endpoint_hint(account: S3Account) -> str:
    names = account.names
    if not account.url:
        return f"no {names.endpoint} is set for this bucket, so Amazon is asked"
    return f"check {names.endpoint}"
