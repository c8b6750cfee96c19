"""Bus credentials for simulated workers: minted as in service, revoked at the broker."""

from datetime import datetime, timedelta

from remuda.bus.credentials import Account
from remuda.core.ids import NodeId
from remuda.fleet.model import NodeType
from remuda.fleet.ports import BusCredentials
from remuda.wire import subjects
from tests.support.memory_bus import MemoryBroker


class Issuer:
    """Implements fleet.ports.CredentialIssuer."""

    def __init__(self, account: Account, ttl: timedelta, broker: MemoryBroker) -> None:
        self._account = account
        self.ttl = ttl
        self._broker = broker

    def mint(self, node_type: NodeType, node_id: NodeId, now: datetime) -> BusCredentials:
        allowed = subjects.permissions(node_type.value, node_id)
        minted = self._account.mint_worker(
            node_type.value,
            node_id,
            subscribe=allowed.subscribe,
            publish=allowed.publish,
            now=now,
            ttl=self.ttl,
        )
        assert minted.expires_at is not None, "worker credentials always expire"
        return BusCredentials(minted.jwt, minted.seed.get_secret_value(), minted.expires_at)

    def public_key(self, node_id: NodeId) -> str:
        return self._account.worker_public_key(node_id)

    async def revoke(self, keys: dict[str, datetime]) -> None:
        await self._broker.revoke(keys)
