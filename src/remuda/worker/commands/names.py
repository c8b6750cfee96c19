"""Which names mean one backend, and the locks that go with them."""

from collections.abc import AsyncIterator, Set
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

import anyio

from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.listing import Listing


def known_names(listed: Listing, name: str) -> frozenset[str]:
    """Every name of the backend that `name` stands for: its folder's, in its metadata, alias, meta."""
    found = listed.get(name)
    if found is None:
        return frozenset({name})
    same = [one for one in listed.backends if one.folder == found.folder]
    told = (text for one in same for text in (one.name, one.metadata.name, one.metadata.alias))
    return frozenset({name, found.folder.name, *told}) - {""}


def ordered_names(spec: InstallSpec | None) -> frozenset[str]:
    """The names that it will have."""
    return frozenset() if spec is None else frozenset({spec.name, spec.alias, spec.meta}) - {""}


class NameLocks:
    """One lock per name. Whoever wants a backend alone takes the locks of all its names."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # Gone with their users.

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def held(self, names: Set[str]) -> AsyncIterator[None]:
        """Taken in one order by everybody, so that no two wait for each other. Not to be nested."""
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                lock = self._locks.get(name) or anyio.Lock()
                self._locks[name] = lock
                await stack.enter_async_context(lock)
            yield
