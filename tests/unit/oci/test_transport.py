"""What is said of a registry that cannot be spoken to."""

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.oci.registries import Registries
from remuda.oci.transport import open_transport

pytestmark = pytest.mark.anyio


async def test_a_registry_over_plain_http_is_named_with_the_setting_that_allows_it() -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    place = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, open_transport(Registries()) as transport, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with pytest.raises(Misconfigured, match="does not speak HTTPS") as refused:
            async with transport.request("GET", URL(f"https://{place}/v2/")):
                pass
        tasks.cancel_scope.cancel()

    assert f"add {place} to insecure-registries (REMUDA_INSECURE_REGISTRIES)" in refused.value.hint
