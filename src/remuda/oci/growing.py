"""A download that can be read while it arrives: whoever unpacks it need not wait for its end.

The bytes are not verified yet. The end of the file is: it is reached only when all of it has the digest that
was promised, so that whatever was made of the bytes before can be thrown away.
"""

import os
from pathlib import Path
from threading import Condition


class StartedOver(Exception):
    """The bytes read so far are not, or may not be, those of the finished file."""


class Growth:
    """How far one file is. Told by the thread that writes it, waited for by those that read."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._size = 0
        self._life = 0
        self._final = False
        self._ended = False

    @property
    def life(self) -> int:
        """Changes whenever the file starts over."""
        return self._life

    def reached(self, size: int) -> None:
        with self._changed:
            self._size = size
            self._changed.notify_all()

    def restarted(self) -> None:
        with self._changed:
            self._size, self._life = 0, self._life + 1
            self._changed.notify_all()

    def verified(self) -> None:
        """It is whole, and as promised."""
        with self._changed:
            self._final = True
            self._changed.notify_all()

    def ended(self) -> None:
        """Nothing will come any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def size_beyond(self, position: int, life: int) -> int:
        """The size once it is larger than `position`, or once it is final. StartedOver when it cannot be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._size > position or self._final or self._ended or self._life != life
            )
            if self._life != life or (self._size <= position and not self._final):
                raise StartedOver
            return self._size


class GrowingFile:
    """Reads blocks until there is something to read. Used by one thread, closed by whoever opened it."""

    def __init__(self, path: Path, growth: Growth) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._growth = growth
        self._life = growth.life
        self._position = 0

    def read(self, size: int, /) -> bytes:
        """Some bytes; none at the end of a verified file. StartedOver when that will not come."""
        available = self._growth.size_beyond(self._position, self._life) - self._position
        data = os.pread(self._descriptor, min(size, available), self._position)
        if available and not data:
            raise StartedOver
        self._position += len(data)
        return data

    def close(self) -> None:
        os.close(self._descriptor)
