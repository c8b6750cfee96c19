"""A model server that really sees, as far as that goes: it decodes the picture of a question, and says its
size and its most frequent colour. Run as a backend, with a port."""

import argparse
import asyncio
import base64
import json
import signal
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
BYTES_OF_PIXEL: Final = {2: 3, 6: 4}  # RGB, and RGB with transparency.


def picture_bytes(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A PNG of one colour."""
    rows = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def seen(png: bytes) -> str:
    """What is in the picture, in words; ValueError for what is no PNG of eight bits a colour."""
    if not png.startswith(SIGNATURE):
        raise ValueError("not a PNG")
    parts = list(_parts(png))
    width, height, bits, colours, *_ = struct.unpack(">IIBBBBB", dict(parts)[b"IHDR"])
    size = BYTES_OF_PIXEL.get(colours)
    if bits != 8 or size is None:
        raise ValueError(f"a PNG with {bits} bits and colours of the kind {colours}")
    packed = b"".join(data for kind, data in parts if kind == b"IDAT")
    lines = _unfiltered(zlib.decompress(packed), width * size, size)
    pixels = Counter(line[at : at + 3] for line in lines for at in range(0, width * size, size))
    return f"{width} x {height} pixels, mostly #{pixels.most_common(1)[0][0].hex()}"


def _parts(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _unfiltered(raw: bytes, width: int, size: int) -> Iterator[bytes]:
    """Lines of bytes; each is stored as the difference to what is beside and above it."""
    above = bytearray(width)
    for start in range(0, len(raw), width + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + width])
        for at in range(width):
            left = line[at - size] if at >= size else 0
            corner = above[at - size] if at >= size else 0
            up = above[at]
            beside = (0, left, up, (left + up) // 2, _nearest(left, up, corner))[kind]
            line[at] = (line[at] + beside) & 255
        above = line
        yield bytes(line)


def _nearest(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((abs(guess - one), place, one) for place, one in enumerate((left, up, corner)))[2]


def answer_to(body: dict[str, Any]) -> str:
    content = body["messages"][-1]["content"]
    parts = content if isinstance(content, list) else []
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if not urls:
        return "There is no picture."
    return "; ".join(seen(base64.b64decode(url.partition(",")[2])) for url in urls)


async def chat(request: web.Request) -> web.StreamResponse:
    words = answer_to(await request.json()).split(" ")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number, word in enumerate(words):
        await _send(response, {"delta": {"content": f" {word}" if number else word}})
    await _send(response, {"delta": {}, "finish_reason": "stop"})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, choice: dict[str, object]) -> None:
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


async def healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def serve(port: int) -> None:
    app = web.Application(client_max_size=32 << 20)
    app.add_routes([web.post("/v1/chat/completions", chat), web.get("/health", healthy)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))
