"""Changes to configured models: their text as a whole or key by key, their name, and whether a file or the
store has the last word on them. What two people do at once never overwrites what one of them has not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from anyio.to_thread import run_sync
from pydantic import JsonValue

from remuda.core.errors import Conflict, Invalid
from remuda.core.hints import pasted
from remuda.core.os_errors import os_reason
from remuda.models.editing import assignment, changes_of, edit
from remuda.models.reading import check_name, check_new_name, located, read_model
from remuda.ops.model import Kind, UnloadCause, UnloadReason
from remuda.ops.ports import Filter, OpStore, View
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.model import ADDED, Renaming, StoredModel
from remuda.scheduler.ports import ModelEditStore, RoutingTable
from remuda.scheduler.service import AddedModel, Models, require_added

ANY: Final = "*"  # In place of an ETag: whatever it is now.
_TRIES: Final = 5  # Others change models, too.


class Stale(Conflict):
    """The model was changed meanwhile. `current` is what it is now."""

    def __init__(self, current: StoredModel) -> None:
        super().__init__(
            f"{current.name} was changed since you read it",
            hint="look at both texts, and send yours again with the current ETag",
        )
        self.current = current


class FollowedFolder(Protocol):
    def has(self, model: StoredModel) -> bool: ...

    async def set_aside(self, file: str) -> str: ...


@dataclass(frozen=True, slots=True)
class TakenOver:
    """`aside`: the path of the file that described it before; empty: none did. `trouble`: why that file could
    not be renamed, which is then to be removed by hand."""

    added: AddedModel
    aside: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Renamed:
    model: Catalogued
    unloads: Sequence[View] = ()
    keys: tuple[str, ...] = ()  # API keys that were limited to the old name.
    aliases: tuple[str, ...] = ()  # Models that were other names for it, and still are.


class ModelEdits:
    """`folder` is this frontend's own."""

    def __init__(
        self,
        models: Models,
        store: ModelEditStore,
        operations: OpStore,
        folder: FollowedFolder,
        table: RoutingTable,
    ) -> None:
        self._models = models
        self._store = store
        self._operations = operations
        self._folder = folder
        self._table = table

    async def replace(self, name: str, text: str, etag: str) -> AddedModel:
        """Give it this text, if its own still has this ETag. Raises Stale when it does not."""
        return await self._change(name, lambda stored: text, etag)

    async def preview(self, name: str, text: str, etag: str) -> AddedModel:
        """What `replace` would answer or refuse now; nothing is changed."""
        before = await self._editable(name, etag)
        after, warnings = await self._checked(before, text)
        same = text == before.stored.text
        unknown = read_model(text).unknown
        return AddedModel(before, True, unknown, warnings, same, reloads=_reloads(before, after))

    async def patch(
        self, name: str, patch: Mapping[str, JsonValue], assigned: Sequence[str] = (), etag: str = ANY
    ) -> AddedModel:
        """Set keys and leave all others as they are, comments included. `assigned`: as `key.path=value`."""
        changes = [*changes_of(patch), *map(assignment, assigned)]
        if not changes:
            raise Invalid("there is nothing to set")
        return await self._change(name, lambda stored: edit(stored.text, changes), etag)

    async def _change(self, name: str, edited: Callable[[StoredModel], str], etag: str) -> AddedModel:
        for _ in range(_TRIES):
            before = await self._editable(name, etag)
            text = await run_sync(partial(edited, before.stored))
            after, warnings = await self._checked(before, text)
            same = text == before.stored.text
            if same or await self._store.change_model(before.stored, after) is not None:
                await self._changed()
                after_all = await self._models.get(name)
                unknown, reloads = read_model(text).unknown, _reloads(before, after)
                added = AddedModel(after_all, True, unknown, warnings, same, reloads=reloads)
                if after_all.config.backend == before.config.backend:
                    return added
                nowhere = await self._models.nowhere(after_all)
                return replace(added, warnings=(*warnings, nowhere), no_node=True) if nowhere else added
        raise Stale((await self._models.get(name)).stored)

    async def _editable(self, name: str, etag: str) -> Catalogued:
        found = await self._models.get(name)
        require_added(found.stored)
        if etag not in (ANY, found.stored.etag):
            raise Stale(found.stored)
        return found

    async def _checked(self, before: Catalogued, text: str) -> tuple[StoredModel, tuple[str, ...]]:
        config = read_model(text)
        with located(text):
            if config.id != before.config.id:
                raise Invalid(
                    f"name: this is {before.config.id}, and an edit does not rename it",
                    hint=f"remuda models rename {pasted(before.config.id)} {pasted(config.id)}",
                    param="name",
                )
            warnings = await self._models.check(config, new=False)
        return replace(before.stored, text=text, revision=config.revision), warnings

    async def take_over(self, text: str) -> TakenOver:
        """Add a model, or change it, even where a file of this frontend's folder describes it: the file is
        set aside, and the store has the last word from now on."""
        config = read_model(text)
        before = {one.config.id: one for one in await self._models.configured()}.get(config.id)
        if before is None or not before.stored.file:
            return TakenOver(await self._models.add(text))
        if not self._folder.has(before.stored):
            require_added(before.stored)
        after, warnings = await self._checked(before, text)
        if await self._store.change_model(before.stored, replace(after, origin=ADDED)) is None:
            raise Stale((await self._models.get(config.id)).stored)
        # Only now: should this frontend die in between, the file is refused when it starts again, and nothing
        # is lost. The other way round the model would be gone.
        aside, trouble = await self._set_aside(before.stored.file)
        await self._changed()
        same = text == before.stored.text
        added = AddedModel(await self._models.get(config.id), True, config.unknown, warnings, same)
        return TakenOver(added, aside, trouble)

    async def take_over_file(self, name: str) -> TakenOver:
        """The same with the text that it has."""
        found = await self._models.get(name)
        if not found.stored.file:
            raise Conflict(f"{name} is not described by a file; there is nothing to take over")
        return await self.take_over(found.stored.text)

    async def _set_aside(self, file: str) -> tuple[str, str]:
        try:
            return await self._folder.set_aside(file), ""
        except FileNotFoundError:  # It is gone already.
            return "", ""
        except OSError as error:
            return "", f"{file} could not be renamed, and is ignored from now on: {os_reason(error)}"

    async def rename(self, name: str, new: str, by: str, *, keep_alias: bool = False) -> Renamed:
        """Its replicas, which go by the old name, are unloaded when what they answer has ended; the next
        request for the new name loads it. Keys that are limited to the old name follow, and aliases of it."""
        check_name(new)
        check_new_name(new)
        for _ in range(_TRIES):
            before = await self._models.get(name)
            if new == before.config.id:
                raise Conflict(f"{name} has this name already")
            require_added(before.stored)
            await self._require_quiet(before.config.id)
            await self._models.require_free(new)
            renaming = await self._renaming(before, new, keep_alias=keep_alias)
            keys = await self._store.rename_model(renaming)
            if keys is None:
                continue
            await self._changed()
            why = UnloadReason(UnloadCause.MODEL_RENAMED)
            unloads = await self._models.unload_all(before.config.id, by, why)
            aliases = tuple(after.name for _, after in renaming.others)
            return Renamed(await self._models.get(new), unloads, keys, aliases)
        raise Conflict(f"{name} could not be renamed: others change models all the time", hint="try again")

    async def _require_quiet(self, model: str) -> None:
        """Conflict while an operation is under way that would end under a name that is no longer there."""
        for view in await self._operations.views(Filter(finished=False, model=model)):
            operation = view.operation
            if operation.kind is not Kind.UNLOAD:
                raise Conflict(
                    f"an operation on {model} is under way: {operation.kind.value} {operation.id}",
                    hint=f"wait for it, or end it with: remuda ops cancel {operation.id}",
                )

    async def _renaming(self, before: Catalogued, new: str, *, keep_alias: bool) -> Renaming:
        old = before.config.id
        after = await _set_key(before.stored, "name", new)
        others: list[tuple[StoredModel, StoredModel]] = []
        for one in await self._models.configured():
            if one.config.alias == old:
                if one.stored.file:
                    raise Conflict(
                        f"{one.config.id} is an alias of {old}, and the file {one.stored.file} says so",
                        hint=f"take it over first: remuda models import {pasted(one.config.id)}",
                    )
                others.append((one.stored, await _set_key(one.stored, "alias", new)))
        kept = None
        if keep_alias:
            [change] = changes_of({"alias": new})
            text = edit("", [*changes_of({"name": old}), change])
            kept = StoredModel(old, text, read_model(text).revision, ADDED)
        return Renaming(before.stored, replace(after, name=new), tuple(others), kept)

    async def _changed(self) -> None:
        self._table.rows_changed()
        await self._table.refresh()


def _reloads(before: Catalogued, after: StoredModel) -> bool:
    """Whether requests are not to reach replicas that were loaded before the change."""
    return after.revision != read_model(before.stored.text).revision


async def _set_key(stored: StoredModel, key: str, value: str) -> StoredModel:
    text = await run_sync(partial(edit, stored.text, list(changes_of({key: value}))))
    return replace(stored, text=text, revision=read_model(text).revision)
