"""A model to many workers at once, behind an origin with a slow link: what the origin sends, and how long
it takes.

    uv run --group dev python -m bench.model_spread [--mb 200] [--workers 8] [--mb-per-s 20]

A real frontend has the file; its link to all workers together is shaped by a proxy. First one worker loads a
model with a file of that size, then all of them load one at the same moment. Workers reach each other over
loopback: what passes between them, that rate for each, has to be below what this machine carries.
Aim: the origin sends less than 1.2 times the model.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from tests.integration.staging.fleet import HOST, Fleet, fleet
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

AIM = 1.2
LOADED_S = 600.0


async def spread(folder: Path, size: int, count: int, bytes_per_s: float) -> None:
    workers = [f"w{number}" for number in range(count)]
    with fleet(folder, ()) as place:
        async with relay(place.port) as link:
            for name in workers:
                await run_sync(place.start_worker, name, f"http://{HOST}:{link.port}")
            await run_sync(place.wait_for_workers)
            link.bytes_per_s_together = bytes_per_s
            alone_s, alone = await timed(place, link, "alone.bin", workers[:1], size)
            spread_s, sent = await timed(place, link, "spread.bin", workers, size)
            print(f"1 worker:   {alone_s:6.1f} s, {alone / size:.2f} of the model from the origin")
            print(
                f"{count} workers:  {spread_s:6.1f} s, {sent / size:.2f} of the model from the origin "
                f"(aim: {AIM}), {spread_s / alone_s:.2f} of the time of one copy",
                flush=True,
            )
            for name in workers:
                print(f"  {name} took it from {', '.join(place.sources_of(name)[-3:])}")


async def timed(place: Fleet, link: Relay, file: str, workers: Sequence[str], size: int) -> tuple[float, int]:
    """Seconds until all of them serve it, and what the link has passed meanwhile."""
    place.other_ports = {link.port: "origin"}
    await run_sync(place.put, file, size)
    models = {name: f"{file}-{name}" for name in workers}
    for name, model in models.items():
        await run_sync(place.add, model, file, name)
    before, began = link.bytes_back, time.monotonic()
    for model in models.values():
        await run_sync(place.load, model)
    for model in models.values():
        await wait_until(partial(run_sync, place.loaded, model), within=LOADED_S, what=model)
    return time.monotonic() - began, link.bytes_back - before


def main() -> None:
    parser = argparse.ArgumentParser(description="A model to many workers behind a slow origin.")
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--mb-per-s", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder:
        bytes_per_s = options.mb_per_s * 1e6
        anyio.run(spread, Path(folder), options.mb * 1_000_000, options.workers, bytes_per_s)


if __name__ == "__main__":
    main()
