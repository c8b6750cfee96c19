"""Log events as sentences, for a terminal. Events that are not in the table are spelled out. Pure."""

from collections.abc import Mapping
from typing import Final

SENTENCES: Final[Mapping[str, str]] = {
    "abandoned_replica_not_stopped": "a replica that nobody waits for any more could not be stopped",
    "backend_broke_off": "a backend closed its connection in the middle of an answer",
    "backend_left_behind": "a backend process could not be stopped and is left behind",
    "backend_refused_connection": "a backend refused a connection",
    "backends_not_listed": "a node did not list its backends",
    "builtin_not_refreshed": "a built-in backend could not be updated",
    "bus_connect_failed": "cannot connect to the NATS server",
    "bus_lost": "the connection to the NATS server was lost",
    "bus_message_dropped": "a message from the NATS server was dropped: too many are waiting",
    "bus_permission_refused": "the NATS server denied a permission",
    "bus_rotation_failed": "cannot connect to the NATS server with the new credentials",
    "caller_stalled": "a client stopped reading and was disconnected",
    "changes_not_read": "changes could not be read from the database",
    "child_exited": "a process ended and will be restarted",
    "child_given_up": "a process keeps ending and is not restarted any more",
    "command_failed": "a command from the frontend failed",
    "commands_do_not_arrive": "the frontend's commands do not reach this node",
    "departure_step_failed": "the frontend could not be told that this worker stops",
    "disconnects_not_heard": "this frontend does not learn when workers disconnect from the bus",
    "download_restarted": "a download has to start over",
    "gallery_address_answers": "a gallery can be read again",
    "gallery_address_failed": "a gallery cannot be read",
    "gallery_copy_unusable": "the kept copy of a gallery cannot be used",
    "hardware_part_failed": "some of this machine's hardware could not be examined",
    "hearing_lost": "the database cannot be written, so heartbeats do not count",
    "heartbeat_failed": "the frontend did not accept a heartbeat",
    "heartbeats_not_written": "heartbeats could not be written to the database",
    "inference_refused": "a request was refused",
    "keys_not_refreshed": "the API keys could not be read again",
    "mirror_skipped": "a registry mirror was skipped",
    "model_file_cut_off": "a model file is incomplete",
    "model_file_refused": "a model file cannot be used",
    "model_not_usable": "a model cannot be used",
    "nats_server_said": "the NATS server says",
    "node_cut_off": "a node is cut off from the bus",
    "node_not_on_our_bus": "a node is connected to another bus than this frontend",
    "node_removed": "stopped",
    "parent_gone": "the process that started this one has ended",
    "registration_failed": "could not register with the frontend",
    "registration_is_open": "anyone may join this fleet",
    "replica_forgotten": "a replica is not used any more",
    "replica_in_doubt": "a replica failed a request and is being checked",
    "replica_out_of_reach": "a replica cannot be reached",
    "reply_missing": "a node did not answer",
    "request_failed": "a request failed because of a bug in Remuda",
    "request_refused": "a request was refused",
    "setting_has_no_effect_yet": "a setting has no effect yet",
    "stop_not_sent": "a worker could not be told to stop",
    "stopped_at_once": "stopped without waiting for what was running",
    "stray_replica_found": "a model is running that nobody asked for",
    "subscription_refused": "the NATS server does not let this worker receive commands",
    "table_not_refreshed": "the list of replicas could not be read again",
    "upgrades_not_checked": "galleries could not be checked for upgrades",
}
_WHY: Final = (
    "reason",
    "error",
    "why",
    "ending",
    "line",
    "warning",
)  # The first of them follows a colon.
_TRACEBACK: Final = "exception"


def sentence(event: str, details: Mapping[str, object]) -> str:
    """One line: what happened, why, what to do about it, and the rest in brackets. A traceback follows it."""
    said = SENTENCES.get(event) or (event.replace("_", " ") if event.isidentifier() else event)
    trace = details.get(_TRACEBACK, "")
    rest = {
        name: _printable(value)
        for name, value in details.items()
        if value not in (None, "") and name != _TRACEBACK
    }
    hint = rest.pop("hint", "")
    why = next((name for name in _WHY if name in rest), None)
    parts = [said[:1].upper() + said[1:]]
    if why is not None:
        parts.append(f": {rest.pop(why)}")
    if hint:
        parts.append(f"; {hint}")
    if rest:
        parts.append(f" ({', '.join(f'{_words(name)} {value}' for name, value in rest.items())})")
    return "".join(parts) + (f"\n{trace}" if trace else "")


def _printable(value: object) -> str:
    """On one line, and without what a terminal would obey: some of it was said by other machines."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def _words(name: str) -> str:
    return name.replace("_", " ")
