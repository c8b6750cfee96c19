"""Work in two threads that would wait for each other in one: the next items are made while one is used."""

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class _End(Generic[T]):
    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure


def read_ahead(items: Iterator[T], ahead: int) -> Generator[T]:
    """The same items, made in a thread of their own, at most `ahead` of them before they are asked for.

    What the items raise is raised here. Whoever stops early closes this generator, which returns when that
    thread has ended: after the item it is at.
    """
    made: SimpleQueue[T | _End[T]] = SimpleQueue()
    free = Semaphore(ahead)
    stopped = False

    def make() -> None:
        failure: Exception | None = None
        try:
            for item in items:
                made.put(item)
                free.acquire()
                if stopped:
                    return
        except Exception as error:  # Raised again by whoever asks for the item.
            failure = error
        made.put(_End(failure))

    maker = Thread(target=make, name="read-ahead", daemon=True)
    maker.start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
            free.release()
        if item.failure is not None:
            raise item.failure
    finally:
        stopped = True
        free.release()
        maker.join()
