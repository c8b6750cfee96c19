"""Why a step waits, or how it ended: as values, which decisions compare, with the words for each of them in
this one place. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class StepCause(StrEnum):
    """These values are stored. What each is given as details stands in `_WORDS`."""

    # It waits.
    RETRY = "retry"  # For the time of the next attempt.
    SERVER_WAIT = "server_wait"  # The same, which a server has chosen.
    PAUSED = "paused"
    NODE_AWAY = "node_away"  # Or kept from work by an admin; also of a step at work, which is not heard.
    OTHER_OPERATION = "other_operation"
    OTHER_OPERATION_HERE = "other_operation_here"
    FRONTENDS_FIRST = "frontends_first"
    OTHER_NODES = "other_nodes"
    CANARY = "canary"
    CANARY_AWAY = "canary_away"
    WORKER_BUSY = "worker_busy"
    NODES_BUSY = "nodes_busy"
    FRONTENDS_BUSY = "frontends_busy"
    FILES_ELSEWHERE = "files_elsewhere"  # Another frontend alone has them.
    BUS_DOWN = "bus_down"
    ASKED_AGAIN = "asked_again"
    # It is being stopped.
    PAUSING = "pausing"
    CANCELLING = "cancelling"
    # It succeeded.
    NOTHING_TO_DO = "nothing_to_do"
    FILES_THERE = "files_there"
    SAME_VERSION = "same_version"
    VERSION_LISTED = "version_listed"
    REPORTED = "reported"  # By a worker that sends reports.
    REPORTED_REPLY_DUE = "reported_reply_due"
    REPORTED_REPLY_LOST = "reported_reply_lost"
    LISTED = "listed"  # By one that has to be asked.
    LISTED_REPLY_DUE = "listed_reply_due"
    LISTED_REPLY_LOST = "listed_reply_lost"
    GONE = "gone"
    NOT_INSTALLED = "not_installed"
    KEPT_OTHER_BYTES = "kept_other_bytes"
    UNVERIFIED = "unverified"
    NOTE = "note"  # As the worker says, or the frontend that carried it out.
    NOT_PROVEN = "not_proven"
    PROVEN_ELSEWHERE = "proven_elsewhere"
    # It was cancelled.
    CANCELLED = "cancelled"
    CANCELLED_UNBEGUN = "cancelled_unbegun"
    CANCELLED_BETWEEN = "cancelled_between"
    NODE_REMOVED = "node_removed"
    NOT_NEEDED = "not_needed"
    ROLL_OUT_STOPPED = "roll_out_stopped"
    MODEL_KEPT = "model_kept"
    # It failed for good.
    PROBLEM = "problem"
    LEFT_UNPROVEN = "left_unproven"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_FAILED = "rollback_failed"
    NO_ROLLBACK = "no_rollback"
    # It was skipped.
    UNFIT = "unfit"
    KNOWN_BAD = "known_bad"
    # Written by a release that has no such values, or has others.
    OTHER = "other"


class Remainder(StrEnum):
    """What a cancelled step may leave behind: details of CANCELLED."""

    OFFLINE = "offline"
    TOO_SLOW = "too_slow"
    CANNOT_STOP = "cannot_stop"
    UNPROVEN_VERSION = "unproven_version"
    BROKEN_VERSION = "broken_version"


_REMAINDERS: Final[Mapping[str, str]] = {
    Remainder.OFFLINE: "it was offline and may have finished it",
    Remainder.TOO_SLOW: "its worker did not stop it in time",
    Remainder.CANNOT_STOP: "its worker cannot be asked to stop, and may still finish it",
    Remainder.UNPROVEN_VERSION: "the node has the new version, which was not proven",
    Remainder.BROKEN_VERSION: "the node has the new version, which did not start",
}
_WORDS: Final[Mapping[StepCause, str]] = {
    StepCause.RETRY: "waiting to retry",
    StepCause.SERVER_WAIT: "the server asks to wait: next attempt at {0}",
    StepCause.PAUSED: "paused",
    StepCause.NODE_AWAY: "{0}",
    StepCause.OTHER_OPERATION: "waiting for operation {0}",
    StepCause.OTHER_OPERATION_HERE: "waiting for operation {0} on this node",
    StepCause.FRONTENDS_FIRST: "waiting for the frontends to remove it first",
    StepCause.OTHER_NODES: "waiting for other nodes",
    StepCause.CANARY: "waiting for the first node to succeed",
    StepCause.CANARY_AWAY: "{0} has to succeed first and is offline; if it stays so, another node goes first",
    StepCause.WORKER_BUSY: "its worker is still busy with operation {0}",
    StepCause.NODES_BUSY: "as many nodes are busy as may be at once",
    StepCause.FRONTENDS_BUSY: "waiting for other models that are being installed",
    StepCause.FILES_ELSEWHERE: "waiting for the frontend on {0}, which alone has the files",
    StepCause.BUS_DOWN: "nothing can be sent now: {0}",
    StepCause.ASKED_AGAIN: "asked for again by {0}",
    StepCause.PAUSING: "being paused",
    StepCause.CANCELLING: "being cancelled",
    StepCause.NOTHING_TO_DO: "already there; nothing to do",
    StepCause.FILES_THERE: "its files were already there; nothing was fetched or started",
    StepCause.SAME_VERSION: "it already had this version",
    StepCause.VERSION_LISTED: "the node already lists this version",
    StepCause.REPORTED: "its worker reports {0}",
    StepCause.REPORTED_REPLY_DUE: "its worker reports {0}; its reply has not arrived",
    StepCause.REPORTED_REPLY_LOST: "its worker reports {0}; its reply was lost",
    StepCause.LISTED: "the node lists {0}",
    StepCause.LISTED_REPLY_DUE: "the node lists {0}; its reply has not arrived",
    StepCause.LISTED_REPLY_LOST: "the node lists {0}; its reply was lost",
    StepCause.GONE: "it is gone",
    StepCause.NOT_INSTALLED: "it was not installed",
    StepCause.KEPT_OTHER_BYTES: "the node lists {0}, which is not what the reference stands for now: "
    "LocalAI's workers keep what they have until it is upgraded",
    StepCause.UNVERIFIED: "done, but the node does not say which version it has; remuda backends shows "
    "what it lists",
    StepCause.NOTE: "{0}",
    StepCause.NOT_PROVEN: "{0}",
    StepCause.PROVEN_ELSEWHERE: "{0}; others have run it",
    StepCause.CANCELLED: "cancelled",
    StepCause.CANCELLED_UNBEGUN: "cancelled before it began",
    StepCause.CANCELLED_BETWEEN: "cancelled before the next attempt",
    StepCause.NODE_REMOVED: "the node was removed from the fleet",
    StepCause.NOT_NEEDED: "{0}",
    StepCause.ROLL_OUT_STOPPED: "the roll-out stopped at {0}: {1}",
    StepCause.MODEL_KEPT: "the model was not removed from the frontends: {0}",
    StepCause.PROBLEM: "{0}",
    StepCause.LEFT_UNPROVEN: "the new version is installed and was not proven: {0}",
    StepCause.ROLLED_BACK: "{0}; the node was rolled back to {1}",
    StepCause.ROLLBACK_FAILED: "{0}; the rollback failed, so the node still has this version: {1}",
    StepCause.NO_ROLLBACK: "{0}; its worker cannot roll back",
    StepCause.UNFIT: "{0}",
    StepCause.KNOWN_BAD: "{0}; {1}",
    StepCause.OTHER: "{0}",
}
_FIGURES: Final = re.compile(r"\d+")
_CANCELLED: Final = frozenset({StepCause.CANCELLED, StepCause.CANCELLED_UNBEGUN, StepCause.CANCELLED_BETWEEN})
_UNPROVEN: Final = frozenset(
    {StepCause.NOT_PROVEN, StepCause.PROVEN_ELSEWHERE, StepCause.UNVERIFIED, StepCause.OTHER}
)


@dataclass(frozen=True, slots=True)
class StepReason:
    """`because` makes one. The details are names, and words of nodes, workers and problems."""

    cause: StepCause
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.cause is StepCause.CANCELLED:
            return "; ".join(("cancelled", *(_REMAINDERS.get(one, one) for one in self.details)))
        return _WORDS[self.cause].format(*self.details)

    @property
    def says_cancelled(self) -> bool:
        return self.cause in _CANCELLED

    @property
    def leaves_unproven(self) -> bool:
        """Of a step that succeeded: no process of the version has been seen there. What a release without
        such values wrote is taken to say so, for after a proof it had nothing else to say."""
        return self.cause in _UNPROVEN

    def is_news_after(self, before: "StepReason | None") -> bool:
        """Whether it says something else. The words also have how long a node has been away; that grows with
        every look, and is no news."""
        if before is None or before.cause is not self.cause:
            return True
        if self.cause in (StepCause.NODE_AWAY, StepCause.OTHER):
            return [_FIGURES.sub("", one) for one in before.details] != [
                _FIGURES.sub("", one) for one in self.details
            ]
        return before.details != self.details


def because(cause: StepCause, *details: str) -> StepReason:
    return StepReason(cause, details)


_WITHOUT_DETAILS: Final = {
    words: cause for cause, words in _WORDS.items() if "{" not in words and cause is not StepCause.CANCELLED
}


def reason_in_words(words: str) -> StepReason | None:
    """From what releases wrote that kept nothing else. None: there is no reason."""
    if not words:
        return None
    if words in _WITHOUT_DETAILS:
        return because(_WITHOUT_DETAILS[words])
    first, *rest = words.split("; ")
    if first == "cancelled":
        known = {text: remainder.value for remainder, text in _remainders()}
        return because(StepCause.CANCELLED, *(known.get(text, text) for text in rest))
    return because(StepCause.OTHER, words)


def _remainders() -> list[tuple[Remainder, str]]:
    return [(Remainder(code), text) for code, text in _REMAINDERS.items()]
