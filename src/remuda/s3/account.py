"""How storage that speaks S3 is reached, and how it fails."""

from dataclasses import dataclass, field

from pydantic import SecretStr

from remuda.core.errors import PeerFailed
from remuda.s3.signing import SigningKeys


class StorageFailed(PeerFailed):
    """The same request may work later."""

    code = "storage_failed"


class StorageRefused(PeerFailed):
    """The keys are wrong, or may not do this."""

    code = "storage_refused"
    retryable = False


class StorageUnreached(StorageFailed):
    """No answer has come."""


@dataclass(frozen=True, slots=True)
class AccountNames:
    """Where people say how the storage is reached."""

    key: str = "--storage-access-key"
    secret: str = "--storage-secret-key"
    region: str = "--storage-region"
    endpoint: str = "--storage-url"


@dataclass(frozen=True, slots=True)
class S3Account:
    url: str
    """Empty: Amazon's."""
    bucket: str
    region: str = "us-east-1"
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = field(default=None, repr=False)
    session_token: SecretStr | None = field(default=None, repr=False)
    names: AccountNames = field(default=AccountNames(), repr=False)

    @property
    def place(self) -> str:
        return self.url or "Amazon S3"

    @property
    def keys(self) -> SigningKeys | None:
        """None: requests are not signed."""
        if self.access_key is None or self.secret_key is None:
            return None
        token = "" if self.session_token is None else self.session_token.get_secret_value()
        access, secret = self.access_key.get_secret_value(), self.secret_key.get_secret_value()
        return SigningKeys(self.region, access, secret, token)
