"""What a pull by Ollama's clients means here, and how an install looks in their words. Pure."""

from typing import Final

from msgspec import UNSET, Struct, UnsetType

from remuda.core.errors import RemudaError
from remuda.models.source_refs import is_source
from remuda.wire.operations import OpView, StepView

_LATEST: Final = ":latest"
_HUB_HOSTS: Final = ("hf.co/", "huggingface.co/")


class OllamaPulled(Struct, kw_only=True):
    """POST /api/pull. `insecure` has no effect."""

    model: str = ""
    name: str = ""  # The same, by its older name.
    stream: bool | None = None

    @property
    def wanted(self) -> str:
        return (self.model or self.name).strip()


class OllamaNamed(Struct, kw_only=True):
    """The model that is meant."""

    model: str = ""
    name: str = ""  # The same, by its older name.

    @property
    def wanted(self) -> str:
        return (self.model or self.name).strip()


class OllamaProgress(Struct, frozen=True):
    """A line of a pull."""

    status: str
    digest: str | UnsetType = UNSET  # Of a file that moves: its name.
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaPullFailed(RemudaError):
    """An install that was asked for by a pull."""

    code = "install_failed"
    http_status = 502


def source_of(wanted: str) -> str:
    """Where a model comes from: Ollama's library, unless the name says otherwise."""
    if is_source(wanted):
        return wanted
    for host in _HUB_HOSTS:
        if wanted.startswith(host):
            repository, _, quantisation = wanted.removeprefix(host).partition(":")
            chosen = "" if quantisation in ("", "latest") else f":{quantisation}"
            return f"hf://{repository}{chosen}"
    return f"ollama://{wanted}"


def name_of(wanted: str) -> str:
    """What it is to be called, so that it is found by what was pulled; empty: as its source has it."""
    return "" if is_source(wanted) else wanted.removesuffix(_LATEST)


MANIFEST: Final = OllamaProgress("pulling manifest")
SUCCESS: Final = OllamaProgress("success")


def line_of(view: OpView) -> OllamaProgress:
    """How far an install is that is under way."""
    step = next((step for step in view.steps or () if step.state == "running"), None)
    if step is None:
        failed = _failed_once(view)
        waiting = next((step.reason for step in view.steps or () if step.reason), "")
        return OllamaProgress(waiting or "waiting" if failed is None else f"{failed}; it is tried again")
    progress = step.progress
    if progress is None or not progress.file_name:
        return OllamaProgress(_phase(step) or MANIFEST.status)
    alone = progress.file_size > 0
    total = progress.file_size if alone else progress.total_bytes
    if not total:
        return OllamaProgress(_phase(step) or MANIFEST.status)
    completed = progress.file_bytes if alone else progress.current_bytes
    name = progress.file_name
    return OllamaProgress(f"pulling {name}", name, total, min(completed, total))


def _phase(step: StepView) -> str:
    return "" if step.progress is None else step.progress.phase


def _failed_once(view: OpView) -> str | None:
    """What went wrong with an attempt after which another one comes."""
    waiting = (step for step in view.steps or () if step.state == "pending" and step.problem is not None)
    return next((step.problem.message for step in waiting if step.problem is not None), None)


def tried_in_vain(view: OpView) -> OllamaPullFailed | None:
    """Why an install has failed that goes on being tried, for clients that hear nothing while they
    wait."""
    failed = _failed_once(view)
    if failed is None:
        return None
    hint = f"it goes on being tried: pull again to wait for it, or see remuda ops show {view.id}"
    return OllamaPullFailed(failed, hint=hint)


def failure_of(view: OpView) -> OllamaPullFailed | None:
    """Why an install that is over has brought nothing; None: it has."""
    if view.status == "succeeded":
        return None
    words = view.error or view.message or view.status
    problem = next((step.problem for step in view.steps or () if step.problem is not None), None)
    return OllamaPullFailed(words, hint="" if problem is None else problem.hint)
