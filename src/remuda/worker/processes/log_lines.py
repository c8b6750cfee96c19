"""The newest output of a process, in memory. Pure.

Output is kept as it came, in blocks of whole lines, and split when somebody reads it: a flood costs a copy
and a count, whatever its lines look like.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from remuda.core import limits


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class OutputLine:
    timestamp: datetime  # When its end arrived.
    stream: OutputStream
    text: str
    approximate: bool = False  # It arrived at `timestamp` or earlier.


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines that arrived together; `body` ends with a line break."""

    timestamp: datetime
    stream: OutputStream
    body: bytes
    lines: int
    approximate: bool = False  # They arrived at `timestamp` or earlier.

    @classmethod
    def of(
        cls, timestamp: datetime, stream: OutputStream, body: bytes, *, approximate: bool = False
    ) -> "Block":
        return cls(timestamp, stream, body, body.count(b"\n"), approximate)

    def newest(self, count: int) -> list[OutputLine]:
        """Up to `count` lines from its end, in order. Splits no more than that."""
        pieces = self.body[:-1].rsplit(b"\n", count)
        whole = pieces if len(pieces) <= count else pieces[1:]
        texts = [text for piece in whole for text in _texts(piece)]
        return [OutputLine(self.timestamp, self.stream, text, self.approximate) for text in texts[-count:]]


def _texts(line: bytes) -> Iterator[str]:
    """A line as a terminal would leave it: progress bars write over themselves with carriage returns."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    for start in range(0, max(len(shown), 1), limits.LOG_LINE_BYTES_MAX):
        yield shown[start : start + limits.LOG_LINE_BYTES_MAX].decode(errors="replace")


class Recent:
    """The newest blocks within a bound on lines and one on bytes. The oldest go first."""

    def __init__(self, lines_max: int, bytes_max: int) -> None:
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        self._blocks: deque[Block] = deque()
        self._lines = 0
        self._bytes = 0

    def add(self, block: Block) -> int:
        """Returns how many lines that nobody took had to go for it, some of its own perhaps included."""
        kept = self._shortened(block)
        self._blocks.append(kept)
        self._lines += kept.lines
        self._bytes += len(kept.body)
        dropped = block.lines - kept.lines
        while self._spare_first():
            dropped += self.take().lines
        return dropped

    def take(self) -> Block:
        """The oldest block, which is no longer kept. There must be one."""
        oldest = self._blocks.popleft()
        self._lines -= oldest.lines
        self._bytes -= len(oldest.body)
        return oldest

    def newest(self, count: int, stream: OutputStream | None = None) -> list[OutputLine]:
        """Up to `count` lines from the end, in order of arrival; only of `stream` where one is named."""
        parts: list[list[OutputLine]] = []
        for block in self._newest_blocks(stream):
            if count <= 0:
                break
            parts.append(block.newest(count))
            count -= len(parts[-1])
        return [line for part in reversed(parts) for line in part]

    def __len__(self) -> int:
        """Blocks, not lines."""
        return len(self._blocks)

    def _newest_blocks(self, stream: OutputStream | None) -> Iterable[Block]:
        return (block for block in reversed(self._blocks) if stream in (None, block.stream))

    def _spare_first(self) -> bool:
        if len(self._blocks) < 2:
            return False
        return self._lines - self._blocks[0].lines >= self._lines_max or self._bytes > self._bytes_max

    def _shortened(self, block: Block) -> Block:
        if len(block.body) <= self._bytes_max:
            return block
        end = block.body[-self._bytes_max :]
        # Begins with a whole line if there is one.
        whole = end[end.find(b"\n", 0, -1) + 1 :]
        return Block.of(block.timestamp, block.stream, whole, approximate=block.approximate)
