"""What backend processes write: taken from their pipes a little at a time, kept in memory and in files,
and passed live to followers.

Everything here belongs to the event loop's thread and returns at once. Memory and disk are bounded per
key; a failing disk costs log lines and nothing else. Logs of stopped keys stay a while: that is when they
are read.
"""

import asyncio
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import structlog
from anyio.lowlevel import checkpoint

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.log_store import Block, KeyFolder, OutputLine, OutputStream, Recent, key_of

log = structlog.get_logger(__name__)

_READ_BYTES = 64 * 1024  # At one go: a flood waits for its turn like everything else on the loop.
_LAST_READS_MAX = 16  # As much as the largest pipe holds, 1 MiB.


class Sink(Protocol):
    """Where the output of one process goes. Takes bytes as they come and returns at once."""

    def stdout(self, data: bytes) -> None: ...

    def stderr(self, data: bytes) -> None: ...

    def tail(self, stream: OutputStream, lines: int) -> Sequence[str]: ...

    def close(self) -> None: ...


class Logs(Protocol):
    def open(self, key: ProcessKey, instance: str) -> Sink: ...


class Output:
    """Two pipes on their way to a sink. `stdout` and `stderr` are for the process to write to."""

    def __init__(self, sink: Sink) -> None:
        """Raises OSError when this process has too many files open."""
        self._sink = sink
        with ExitStack() as undone:
            undone.callback(sink.close)
            self._out = _Pipe(sink.stdout)
            undone.callback(self._out.finish)
            undone.callback(self._out.close_entrance)
            self._err = _Pipe(sink.stderr)
            undone.pop_all()
        self.stdout, self.stderr = self._out.entrance, self._err.entrance

    def handed_over(self) -> None:
        """The process holds its ends now; with ours open no pipe would ever end."""
        self._out.close_entrance()
        self._err.close_entrance()

    def finish(self) -> None:
        """Pass on what the process left in its pipes, and let go of them even if another holds them."""
        self.handed_over()
        self._out.finish()
        self._err.finish()
        self._sink.close()

    def tail(self, lines: int) -> Sequence[str]:
        """The last lines of stderr."""
        return self._sink.tail(OutputStream.STDERR, lines)


class _Pipe:
    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._exit, self.entrance = os.pipe()
        self._entered = False
        self._ended = False
        os.set_blocking(self._exit, False)
        self._loop.add_reader(self._exit, self._read)

    def close_entrance(self) -> None:
        if not self._entered:
            self._entered = True
            os.close(self.entrance)

    def finish(self) -> None:
        for _ in range(_LAST_READS_MAX):  # A grandchild may go on writing for ever.
            if not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Whether there may be more at once."""
        if self._ended:
            return False
        try:
            data = os.read(self._exit, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        try:
            self._take(data)
        except Exception:  # That costs lines of a log, not the process.
            log.exception("process_output_lost")
        return True

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._exit)
            os.close(self._exit)


class ProcessLogs:
    """The logs of all keys. `folder` may hold those of an earlier worker, which are shown and continued."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._books: dict[ProcessKey, _Book] = {}
        self._followers: list[Follower] = []
        for key in _keys_in(folder):
            self._books[key] = _Book(KeyFolder(folder, key, clock))
        self._tidy_up()

    def open(self, key: ProcessKey, instance: str) -> "LogSink":
        """Where the output of a new process goes. Close it when the process and its output have ended."""
        book = self._books.setdefault(key, _Book(KeyFolder(self._folder, key, self._clock)))
        book.begin(instance)
        self._tidy_up()
        added = partial(self._added, key, book)
        return LogSink(book.folder, added, partial(self._closed, book, instance), self._clock)

    def lines(self, model_or_key: str) -> list[OutputLine]:
        """The newest lines of a process key, or of all replicas of a model, by time. Empty when unknown."""
        meant = [book for key, book in self._books.items() if _means(model_or_key, key)]
        # Merged, not sorted: within one key order is what was seen, also if the clock was set back.
        return list(heapq.merge(*(book.lines() for book in meant), key=lambda line: line.timestamp))

    def models(self) -> list[str]:
        """The models that have logs, sorted."""
        return sorted({str(key).partition("#")[0] for key in self._books})

    @contextmanager
    def follow(self, model_or_key: str) -> "Iterator[Follower]":
        """Iterate over what it yields: lines that arrive from now on, also of processes yet to start."""
        follower = Follower(model_or_key)
        self._followers.append(follower)
        try:
            yield follower
        finally:
            self._followers.remove(follower)

    def _added(self, key: ProcessKey, book: "_Book", block: Block) -> None:
        book.add(block)
        for follower in self._followers:
            if _means(follower.name, key):
                follower.add(block)

    def _closed(self, book: "_Book", instance: str) -> None:
        book.end(instance, self._clock.now())
        self._tidy_up()

    def _tidy_up(self) -> None:
        """Forget the keys that ended longest ago."""
        ended = sorted((book.ended_at(), key) for key, book in self._books.items() if not book.writers)
        oldest = self._clock.now() - timedelta(days=limits.LOG_STOPPED_DAYS_MAX)
        surplus = max(0, len(ended) - limits.LOG_STOPPED_KEYS_MAX)
        for index, (at, key) in enumerate(ended):
            if index < surplus or at < oldest:
                self._books.pop(key).folder.remove()


class LogSink:
    """The output of one process: two streams, each its own sequence of lines."""

    def __init__(
        self, folder: KeyFolder, added: Callable[[Block], None], ended: Callable[[], None], clock: Clock
    ) -> None:
        self._folder = folder
        self._added = added
        self._ended = ended
        self._clock = clock
        self._closed = False
        self._begun = {stream: bytearray() for stream in OutputStream}  # A line whose end is yet to come.
        # Apart from the key's, so that a flood on one stream does not drive out what the other said last.
        self._tails = {
            stream: Recent(limits.LOG_TAIL_LINES_MAX, limits.LOG_TAIL_BYTES_MAX) for stream in OutputStream
        }

    def stdout(self, data: bytes) -> None:
        self._take(OutputStream.STDOUT, data)

    def stderr(self, data: bytes) -> None:
        self._take(OutputStream.STDERR, data)

    def tail(self, stream: OutputStream, lines: int) -> list[str]:
        """The last lines this process wrote to `stream`, an unfinished one included."""
        begun = self._begun[stream]
        whole = [line.text for line in self._tails[stream].newest(lines)]
        if begun:
            unfinished = Block.of(self._clock.now(), stream, bytes(begun) + b"\n")
            whole += [line.text for line in unfinished.newest(lines)]
        return whole[-lines:] if lines > 0 else []

    def close(self) -> None:
        """What is written later is dropped. Closing twice changes nothing."""
        if self._closed:
            return
        for stream in OutputStream:
            if self._begun[stream]:
                self._take(stream, b"\n")
        self._closed = True
        self._ended()

    def _take(self, stream: OutputStream, data: bytes) -> None:
        if self._closed or not data:
            return
        self._folder.write(stream, data)
        begun = self._begun[stream]
        whole = data.rfind(b"\n") + 1
        if whole:
            self._add(stream, bytes(begun) + data[:whole] if begun else data[:whole])
            begun.clear()
        begun += data[whole:] if whole else data
        if len(begun) > limits.LOG_LINE_BYTES_MAX:
            self._add(stream, bytes(begun) + b"\n")
            begun.clear()

    def _add(self, stream: OutputStream, body: bytes) -> None:
        block = Block.of(self._clock.now(), stream, body)
        self._tails[stream].add(block)
        self._added(block)


class Follower:
    """New lines as they come. A reader that is too slow loses the oldest and learns how many."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting = Recent(limits.LOG_FOLLOW_LINES_MAX, limits.LOG_KEPT_BYTES_MAX)
        self._missed = 0
        self._lines: Iterator[OutputLine] = iter(())
        self._arrived = anyio.Event()

    def add(self, block: Block) -> None:
        self._missed += self._waiting.add(block)
        self._arrived.set()

    def __aiter__(self) -> "Follower":
        return self

    async def __anext__(self) -> OutputLine:
        while (line := next(self._lines, None)) is None:
            if not len(self._waiting):
                self._arrived = anyio.Event()
                await self._arrived.wait()
            await checkpoint()  # Else a flood would keep the loop to itself.
            self._lines = iter(self._next_lines())
        return line

    def _next_lines(self) -> list[OutputLine]:
        block = self._waiting.take()
        lines = block.newest(limits.LOG_FOLLOW_LINES_MAX)
        missed, self._missed = self._missed + max(0, block.lines - len(lines)), 0
        if missed:
            words = f"[{missed} lines are omitted here: they came faster than they were read]"
            lines.insert(0, OutputLine(block.timestamp, block.stream, words))
        return lines


class _Book:
    """The log of one key."""

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self.writers: set[str] = set()
        self.ended: datetime | None = None
        self._recent: Recent | None = None  # Read from the files when it is first needed.

    def begin(self, writer: str) -> None:
        self._kept()  # Before anything is written, or the files' end would count twice.
        self.writers.add(writer)

    def add(self, block: Block) -> None:
        self._kept().add(block)

    def end(self, writer: str, now: datetime) -> None:
        self.writers.discard(writer)
        if not self.writers:
            self.ended = now
            self.folder.close()

    def lines(self) -> list[OutputLine]:
        return self._kept().newest(limits.LOG_LINES_KEPT)

    def ended_at(self) -> datetime:
        if self.ended is None:
            self.ended = self.folder.written_at() or datetime.min.replace(tzinfo=UTC)
        return self.ended

    def _kept(self) -> Recent:
        if self._recent is None:
            self._recent = Recent(limits.LOG_LINES_KEPT, limits.LOG_KEPT_BYTES_MAX)
            for block in self.folder.ends():
                self._recent.add(block)
        return self._recent


def _keys_in(folder: Path) -> list[ProcessKey]:
    try:
        return [key for path in sorted(folder.iterdir()) if (key := key_of(path)) is not None]
    except OSError:
        return []


def _means(model_or_key: str, key: ProcessKey) -> bool:
    text = str(key)
    return text == model_or_key or text.startswith(f"{model_or_key}#")
