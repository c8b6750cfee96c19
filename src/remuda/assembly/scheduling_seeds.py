"""Replicas that are declared when a frontend starts, by LocalAI's settings for that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import anyio
import structlog
import yaml
from anyio.abc import TaskStatus
from pydantic import ValidationError

from remuda.assembly.settings import FrontendSettings
from remuda.core.errors import Invalid, Misconfigured, RemudaError
from remuda.core.field_errors import field_error
from remuda.gateway.admin.scheduling import declared
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.scheduler.scheduling_edits import check_terms
from remuda.wire.scheduling import SchedulingBody

log = structlog.get_logger(__name__)

_AGAIN_S: Final = 5.0
_FILE_BYTES_MAX: Final = 1 << 20
SEEDS_MAX: Final = 10_000
_FLAG: Final = "--model-scheduling"
_FILE_FLAG: Final = "--model-scheduling-config"


class DeclaresOnce(Protocol):
    async def declare_new(self, model: str, terms: SchedulingTerms) -> bool:
        """False: something is declared for it already, which stays."""
        ...


class SchedulingSeeds:
    """Declared once the store answers, and only for models for which nothing is: what admins have declared
    since the last start stays."""

    def __init__(self, seeds: Mapping[str, SchedulingTerms], edits: DeclaresOnce) -> None:
        self._left = dict(seeds)
        self._edits = edits

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while self._left:
            try:
                await self._declare()
            except RemudaError as error:  # The store is away, which is not a bug.
                log.warning("scheduling_not_seeded", reason=error.message)
                await anyio.sleep(_AGAIN_S)

    async def _declare(self) -> None:
        for model, terms in list(self._left.items()):
            if await self._edits.declare_new(model, terms):
                log.info("scheduling_seeded", model=model)
            del self._left[model]


def seeds_of(settings: FrontendSettings) -> Mapping[str, SchedulingTerms]:
    """Of both settings; of a model that is in both, what the list says. Misconfigured, naming the entry, for
    what cannot be declared."""
    found: dict[str, SchedulingTerms] = {}
    if settings.model_scheduling_config is not None:
        found |= _read(_from_file(settings.model_scheduling_config), _FILE_FLAG)
    return found | _read(settings.model_scheduling, _FLAG)


def _from_file(path: Path) -> Sequence[object]:
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Misconfigured(f"{_FILE_FLAG}={path} cannot be read: {error.strerror}") from None
    if len(text) > _FILE_BYTES_MAX:
        raise Misconfigured(f"{_FILE_FLAG}={path} has more than {_FILE_BYTES_MAX >> 20} MiB")
    try:
        entries = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(f"{_FILE_FLAG}={path} is not valid YAML: {str(error)[:300]}") from None
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise Misconfigured(f"{_FILE_FLAG}={path} must be a list of entries with `model_name`")
    return entries


def _read(entries: Sequence[object], flag: str) -> dict[str, SchedulingTerms]:
    if len(entries) > SEEDS_MAX:
        raise Misconfigured(f"{flag} has {len(entries)} entries; {SEEDS_MAX} is the most")
    found: dict[str, SchedulingTerms] = {}
    for number, entry in enumerate(entries, 1):
        try:
            body = SchedulingBody.model_validate(entry)
            terms = declared(body)(SchedulingTerms())
            check_terms(terms)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            raise Misconfigured(f"{flag}, entry {number}: {field_error(wrong)}") from None
        except Invalid as error:
            raise Misconfigured(f"{flag}, entry {number}: {error.message}") from None
        found[body.model_name] = terms
    return found
