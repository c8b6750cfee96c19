"""How backends look to people, and to programs that ask for JSON."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from remuda.cli.render import UNKNOWN, Column, fitting, table_of
from remuda.gallery.model import Found, Reading
from remuda.gallery.resolve import BuildCandidate, ResolvedBuild, Unresolved
from remuda.wire.sizes import install_size
from remuda.worker.depot.depot import Leaving
from remuda.worker.depot.listing import ListedBackend

_DIGEST_CHARS = 19  # `sha256:` and twelve more.
_COMPLAINTS_MAX = 5  # Of one gallery.


def kind_of(found: Found) -> str:
    if found.entry.meta:
        return "meta"
    return "built in" if found.entry.builtin else "build"


def search_table(found: Sequence[Found], output: Console) -> Table:
    columns = [
        Column("NAME", [one.entry.name for one in found]),
        Column("KIND", [kind_of(one) for one in found], needed=2),
        Column("GALLERY", [one.gallery.name for one in found], needed=3),
        Column("DESCRIPTION", [_first_sentence(one.entry.description) for one in found], needed=1),
    ]
    return fitting(columns, output)


def search_document(found: Found) -> Mapping[str, object]:
    entry = found.entry
    return {
        "name": entry.name,
        "kind": kind_of(found),
        "gallery": found.gallery.name,
        "alias": entry.alias,
        "description": entry.description,
        "tags": entry.tags,
        "version": entry.version,
        "uri": entry.uri,
    }


def candidate_table(candidates: Sequence[BuildCandidate]) -> Table:
    return table_of(
        [
            Column("", ["*" if one.chosen else "" for one in candidates]),
            Column("BUILD", [one.name for one in candidates]),
            Column("FOR", [", ".join(one.capabilities) or UNKNOWN for one in candidates]),
            Column("WHY", [one.why for one in candidates]),
        ]
    )


def candidate_document(candidate: BuildCandidate) -> Mapping[str, object]:
    return {
        "name": candidate.name,
        "gallery": candidate.found.gallery.name if candidate.found else "",
        "uri": candidate.found.entry.uri if candidate.found else "",
        "capabilities": candidate.capabilities,
        "chosen": candidate.chosen,
        "why": candidate.why,
    }


def answer_lines(answer: ResolvedBuild | Unresolved) -> list[str]:
    """What this machine gets and what is worth knowing about it, or why nothing fits and what does."""
    if isinstance(answer, Unresolved):
        return [f"nothing fits: {answer.reason}", *([f"hint: {answer.hint}"] if answer.hint else [])]
    return [f"it gets: {answer.why}", *(f"warning: {warning}" for warning in answer.warnings)]


def answer_document(answer: ResolvedBuild | Unresolved) -> Mapping[str, object]:
    if isinstance(answer, Unresolved):
        return {"answer": answer.reason, "hint": answer.hint, "warnings": []}
    return {"answer": answer.why, "hint": "", "warnings": answer.warnings}


def complaint_lines(reading: Reading) -> list[str]:
    """Entries of a gallery that cannot be used, by name, line and reason; of many the first few."""
    complaints, gallery = reading.index.complaints, reading.gallery.name
    more = len(complaints) - _COMPLAINTS_MAX
    lines = [f"gallery {gallery} has {complaint}" for complaint in complaints[:_COMPLAINTS_MAX]]
    return [*lines, f"gallery {gallery} has {more} more such entries"] if more > 0 else lines


def installed_table(backends: Sequence[ListedBackend], output: Console) -> Table:
    columns = [
        Column("NAME", [one.name for one in backends]),
        Column("RUNS", [one.folder.name for one in backends]),
        Column("VERSION", [one.metadata.version or UNKNOWN for one in backends], needed=1),
        Column("DIGEST", [one.metadata.digest[:_DIGEST_CHARS] or UNKNOWN for one in backends], needed=2),
        Column("INSTALLED", [one.metadata.installed_at or _owner(one) for one in backends], needed=3),
        Column("FROM", [one.metadata.uri or UNKNOWN for one in backends], needed=4),
    ]
    return fitting(columns, output)


def leaving_table(leaving: Sequence[Leaving]) -> Table:
    return table_of(
        [
            Column("BLOB", [one.blob.digest[:_DIGEST_CHARS] for one in leaving]),
            Column("SIZE", [install_size(one.blob.size) for one in leaving], right=True),
            Column("WHY", [one.why for one in leaving]),
        ]
    )


def _owner(backend: ListedBackend) -> str:
    return "by the system" if backend.system else UNKNOWN


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0]
