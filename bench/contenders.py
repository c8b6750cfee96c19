"""Programs that do the same work, one after another in the same run: each in a folder of its own, after
everything written before has reached the disk."""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support.debian import debian_program

CONTENDER_S = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    memory_mb: float = 0.0  # Most resident memory during the work, less what there was just before.


Contender = Callable[[Path], Run]
"""The work, done in an empty folder."""


def command(words: list[str]) -> Run:
    began = time.perf_counter()
    subprocess.run(words, check=True, timeout=CONTENDER_S)
    return Run(time.perf_counter() - began)


def in_fresh_interpreter(work: Callable[..., Run], *arguments: object) -> Run:
    """As a process of ours has one, which is started already. The work says itself how long it took."""
    fresh = get_context("spawn")
    receiver, sender = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_send, args=(sender, work, *arguments))
    process.start()
    sender.close()  # Then a child that dies without a word ends the wait.
    try:
        assert receiver.poll(CONTENDER_S), "it took too long"
        answer = receiver.recv()
    finally:
        process.kill()
        process.join()
    assert isinstance(answer, Run)
    return answer


def _send(sender: Connection, work: Callable[..., Run], *arguments: object) -> None:
    sender.send(work(*arguments))


def rates(runs: dict[str, list[Run]], size_mb: float) -> dict[str, float]:
    """In MB/s, of the best round of each."""
    return {name: size_mb / min(run.seconds for run in turns) for name, turns in runs.items()}


def in_turns(runs: dict[str, list[Run]], one: str, other: str) -> float:
    """How fast one is of the other: the median over the rounds, in each of which both had like neighbours."""
    rounds = zip(runs[one], runs[other], strict=True)
    return statistics.median(rival.seconds / own.seconds for own, rival in rounds)


def checksum(file: Path) -> Run:
    """As people check what they have fetched, or are about to send; `sha256sum` takes three times as long."""
    openssl = debian_program("openssl", "openssl")
    return command([openssl, "dgst", "-sha256", "-out", os.devnull, str(file)])


def after(first: Run, second: Run) -> Run:
    return Run(first.seconds + second.seconds, max(first.memory_mb, second.memory_mb))


def parser_of(description: str) -> argparse.ArgumentParser:
    """With what all such commands can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to work; default: the usual for such"
    )
    return parser


def curl(*words: str) -> Run:
    return command([debian_program("curl", "curl"), "--silent", "--show-error", "--fail", *words])


def compete(contenders: dict[str, Contender], rounds: int, folder: Path) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            runs[name].append(alone(contender, folder))
    return runs


def alone(contender: Contender, folder: Path) -> Run:
    """What was written stays until the end, so that freeing it is in no one's way."""
    own = Path(tempfile.mkdtemp(dir=folder))
    os.sync()
    return contender(own)
