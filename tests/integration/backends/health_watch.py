"""Asks a backend's Health again and again, from a process that does nothing else; prints the longest wait.

    python -m tests.integration.backends.health_watch ADDRESS TOKEN

A test that reads many streams is itself too busy to tell how soon an answer came. Ends with its input.
"""

import select
import sys
import time

import grpc

from remuda.rpc import backend_pb2 as pb
from remuda.rpc.backend_pb2_grpc import BackendStub
from tests.support.waiting import wait_until_blocking

WATCH_S = 60.0
CALL_S = 20.0


def main(address: str, token: str) -> None:
    waits: list[float] = []
    with grpc.insecure_channel(address) as channel:
        health = BackendStub(channel).Health

        def ask() -> None:
            health(pb.HealthMessage(), timeout=CALL_S, metadata=[("authorization", f"Bearer {token}")])

        def asked_until_told_to_end() -> bool:
            began = time.monotonic()
            ask()
            waits.append(time.monotonic() - began)
            return bool(select.select([sys.stdin], [], [], 0)[0])

        ask()  # The first one connects.
        print("watching", flush=True)
        wait_until_blocking(asked_until_told_to_end, within=WATCH_S, what="the end of the watch")
    print(len(waits), max(waits), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
