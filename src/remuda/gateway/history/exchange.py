"""What frontends tell each other of the last hour: each step as it ends, and all that is known when one asks
for it, in parts of a bounded size. Pure."""

import sys
from array import array
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isinf
from typing import Annotated, Final

from remuda.core.errors import Rejected
from remuda.core.ids import FrontendId, NodeId
from remuda.gateway.history.series import STEPS, CountedFigure, NodeHour, Sample, SeenFigure, Tracks
from remuda.wire.codec import OMIT_EMPTY, Int64, Many, Message, Number, encode

PART_BYTES: Final = 64 << 10  # A part ends with the node that reaches it.
_SAMPLE_NODES: Final = 1000  # In one message.


class NodeSample(Message):
    """One node in one step: what is seen of it, and what this frontend counts, in the order of SeenFigure and
    CountedFigure; null: not known."""

    node: str
    seen: Annotated[Many[Number | None], OMIT_EMPTY] = ()
    counted: Annotated[Many[Number | None], OMIT_EMPTY] = ()


class StepTaken(Message):
    """Frontend to frontends, ours: what I know of a step that has just ended. `since`: the oldest step of
    which I know anything."""

    frontend: str
    since: Int64
    step: Int64
    nodes: Many[NodeSample] = ()


class HistoryWanted(Message):
    """One frontend to another, ours: tell me all you know, from step `first` on."""

    frontend: str
    of: str
    first: Int64


class NodeTracks(Message):
    """One node from step `first` on: by kind, little-endian 32-bit floats in base64, NaN where not known."""

    node: str
    first: Int64
    seen: Many[str]
    counted: Annotated[dict[str, Many[str]], OMIT_EMPTY] = {}


class HistoryPart(Message):
    """One frontend to another, ours: a part of what was asked for. The last one says up to which step
    everything of each frontend is there."""

    frontend: str
    to: str
    part: Int64  # From 0 on.
    nodes: Many[NodeTracks] = ()
    complete: Annotated[dict[str, Int64], OMIT_EMPTY] = {}


def samples(frontend: FrontendId, since: int, sample: Sample) -> Iterator[bytes]:
    """The messages that tell of a step; one at least, for others to know that they missed nothing."""
    nodes = sorted(sample.seen.keys() | sample.counted.keys())
    for start in range(0, max(len(nodes), 1), _SAMPLE_NODES):
        told = tuple(
            NodeSample(
                node=node,
                seen=tuple(sample.seen.get(node, ())),
                counted=tuple(sample.counted.get(node, ())),
            )
            for node in nodes[start : start + _SAMPLE_NODES]
        )
        yield encode(StepTaken(frontend=frontend, since=since, step=sample.step, nodes=told))


def sample_of(message: StepTaken) -> Sample:
    return Sample(
        message.step,
        {NodeId(one.node): one.seen for one in message.nodes if one.seen},
        {NodeId(one.node): one.counted for one in message.nodes if one.counted},
    )


def parts(
    frontend: FrontendId, to: str, histories: Iterable[NodeHour], complete: Mapping[FrontendId, int]
) -> Iterator[bytes]:
    """Each made when it is asked for."""
    part, nodes, held = 0, list[NodeTracks](), 0
    for one in histories:
        nodes.append(_tracks_message(one))
        held += sum(
            map(len, (*nodes[-1].seen, *(track for of in nodes[-1].counted.values() for track in of)))
        )
        if held >= PART_BYTES:
            yield encode(HistoryPart(frontend=frontend, to=to, part=part, nodes=tuple(nodes)))
            part, nodes, held = part + 1, [], 0
    whole = {str(name): step for name, step in complete.items()}
    yield encode(HistoryPart(frontend=frontend, to=to, part=part, nodes=tuple(nodes), complete=whole))


def histories_of(message: HistoryPart) -> Iterator[NodeHour]:
    """Rejected for what cannot be read."""
    for one in message.nodes:
        seen = _unpacked(one.seen, len(SeenFigure))
        counted = {FrontendId(name): _unpacked(of, len(CountedFigure)) for name, of in one.counted.items()}
        if len({len(track) for tracks in (seen, *counted.values()) for track in tracks}) > 1:
            raise Rejected(f"figures of {one.node} are of different lengths")
        yield NodeHour(NodeId(one.node), one.first, seen, counted)


def _tracks_message(one: NodeHour) -> NodeTracks:
    counted = {str(frontend): _packed(tracks) for frontend, tracks in one.counted.items()}
    return NodeTracks(node=one.node, first=one.first, seen=_packed(one.seen), counted=counted)


def _packed(tracks: Tracks) -> tuple[str, ...]:
    return tuple(b64encode(_little_endian(track).tobytes()).decode() for track in tracks)


def _unpacked(tracks: Collection[str], kinds: int) -> Tracks:
    if len(tracks) < kinds:
        raise Rejected(f"there are {len(tracks)} kinds of figures in place of {kinds}")
    return tuple(_read(text) for text in list(tracks)[:kinds])


def _read(text: str) -> "array[float]":
    track = array("f")
    try:
        track.frombytes(b64decode(text, validate=True))
    except (NotBase64, ValueError) as error:
        raise Rejected("figures cannot be read") from error
    track = _little_endian(track)
    if len(track) > STEPS or any(map(isinf, track)):
        raise Rejected("figures are out of bounds")
    return track


def _little_endian(track: "array[float]") -> "array[float]":
    if sys.byteorder == "little":
        return track
    turned = track[:]
    turned.byteswap()
    return turned
