"""Files of models, pushed to workers that do not fetch for themselves; and hashes of what workers have."""

from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from remuda.fleet.identity import NodeTokens
from remuda.fleet.model import Node
from remuda.staging.push import FilePusher, FileServerAddress, LocalFile
from remuda.wire.files import WantedFile, model_key


class NodePush:
    """Implements scheduler.ports.FilePush."""

    def __init__(self, pusher: FilePusher, tokens: NodeTokens) -> None:
        self._pusher = pusher
        self._tokens = tokens

    async def push(
        self, node: Node, model: str, local: Path, file: WantedFile, on_size: Callable[[int], None]
    ) -> str:
        sent = LocalFile(local, file.size, file.sha256)
        return (
            await self._pusher.push(sent, self._server(node), model_key(model, file.path), on_size)
        ).local_path

    async def sha256(self, node: Node, path: str, size: int) -> str:
        return await self._pusher.sha256(self._server(node), f"models/{path}", size)

    def _server(self, node: Node) -> FileServerAddress:
        token = self._tokens.of(node).http
        return FileServerAddress(node.name, node.http_address, SecretStr(token) if token else None)
