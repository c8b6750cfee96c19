"""Responses that are kept, as they are shown; and from one that ends to what is kept of it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.responses.bodies import ITEMS, Item
from remuda.gateway.responses.objects import PREFIX, ResponseHead, ResponseResult, response_object
from remuda.inference.stored_responses import StoredResponse

_PAGE_USUAL: Final = 20
_PAGE_MAX: Final = 100
_given_items: Final = msgspec.json.Decoder(str | list[dict[str, Raw]])
_encode: Final = msgspec.json.Encoder().encode
_text: Final = msgspec.json.Decoder(str)
QueryOf = Mapping[str, Sequence[str]]


def drafted(
    head: ResponseHead, owner: str, model: str, previous_id: str | None, written: bytes
) -> StoredResponse:
    """What is kept of a response that nothing was answered to yet."""
    return StoredResponse(
        id=head.id,
        owner=owner,
        model=model,
        status="queued" if head.background else "in_progress",
        created=head.created,
        echo=head.echo,
        input=written,
        previous_id=previous_id or "",
        background=head.background,
    )


def ended_with(draft: StoredResponse, result: ResponseResult) -> StoredResponse:
    return msgspec.structs.replace(
        draft,
        status=result.status,
        output=result.output,
        usage=result.usage,
        error=result.error,
        incomplete=result.incomplete,
        completed=result.completed,
    )


def shown(kept: StoredResponse) -> bytes:
    head = ResponseHead(kept.id, kept.created, kept.echo, kept.background)
    result = ResponseResult(kept.status, kept.output, kept.usage, kept.error, kept.incomplete, kept.completed)
    return response_object(head, result, store=True)


def items_of(kept: StoredResponse) -> list[Item]:
    """What was said in it, by both sides."""
    given = b"[]" if kept.input == b"null" else kept.input
    asked = ITEMS.decode(given)
    answered = ITEMS.decode(kept.output)
    assert not isinstance(answered, str)
    return [*([Item(role="user", content=asked)] if isinstance(asked, str) else asked), *answered]


def input_page(kept: StoredResponse, query: QueryOf) -> bytes:
    """What was asked with it, page by page."""
    items = _listed(kept)
    order = query.get("order", ("desc",))[0]
    if order not in ("asc", "desc"):
        raise InvalidField("order must be asc or desc", "order")
    if order == "desc":
        items.reverse()
    after = query.get("after", ("",))[0]
    if after:
        places = [place for place, (item_id, _) in enumerate(items) if item_id == after]
        if not places:
            raise InvalidField(f"after: there is no item {after[:80]!r}", "after")
        items = items[places[0] + 1 :]
    page = items[: _limit(query)]
    members = b'"first_id":%b,"last_id":%b,"has_more":%b' % (
        _encode(page[0][0] if page else None),
        _encode(page[-1][0] if page else None),
        _encode(len(page) < len(items)),
    )
    return b'{"object":"list","data":[%b],%b}' % (b",".join(item for _, item in page), members)


def _limit(query: QueryOf) -> int:
    text = query.get("limit", (str(_PAGE_USUAL),))[0]
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_PAGE_MAX))
    if not is_number or not 1 <= int(text) <= _PAGE_MAX:
        raise InvalidField(f"limit must be a whole number from 1 to {_PAGE_MAX}", "limit")
    return int(text)


def _listed(kept: StoredResponse) -> list[tuple[str, bytes]]:
    """Each with its id: those that came without get one by their place."""
    given = _given_items.decode(b"[]" if kept.input == b"null" else kept.input)
    items = [{"role": Raw(b'"user"'), "content": Raw(_encode(given))}] if isinstance(given, str) else given
    listed = list[tuple[str, bytes]]()
    for place, item in enumerate(items):
        kind = bytes(item.get("type", Raw(b'"message"')))
        known = bytes(item.get("id", Raw(b"null")))
        item_id = f"in_{kept.id.removeprefix(PREFIX)}_{place}" if known == b"null" else _text.decode(known)
        whole = {"id": item_id, **item, "type": Raw(kind)} | {"id": item_id}
        if kind == b'"message"':
            whole |= {"status": item.get("status", Raw(b'"completed"'))}
            whole["content"] = _as_parts(item)
        listed.append((item_id, _encode(whole)))
    return listed


def _as_parts(item: Mapping[str, Raw]) -> Raw:
    content = item.get("content", Raw(b"[]"))
    if bytes(memoryview(content)[:1]) != b'"':
        return content
    if bytes(item.get("role", Raw(b""))) == b'"assistant"':
        return Raw(b'[{"type":"output_text","text":%b,"annotations":[]}]' % bytes(content))
    return Raw(b'[{"type":"input_text","text":%b}]' % bytes(content))
