"""From Anthropic's conversations to chats, as the endpoints parse them."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.anthropic.endpoints import COUNT_TOKENS, ENDPOINTS, MESSAGES, MessagesRequest
from remuda.gateway.inference.body_errors import InvalidField
from remuda.inference.requests import ChatRequest, TokenizeRequest

HI = {"role": "user", "content": "hi"}
ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [HI]}
LOOK = {"name": "look", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def parsed(**body: object) -> MessagesRequest:
    known = ENDPOINTS[MESSAGES].parse(json.dumps({**ASK, **body}).encode())
    assert isinstance(known, MessagesRequest)
    return known


def chat(*messages: object, **body: object) -> ChatRequest:
    return parsed(**{"messages": list(messages) or [HI], **body}).request


def said(*messages: object, **body: object) -> list[tuple[str, object]]:
    return [(message.role, message.content) for message in chat(*messages, **body).messages]


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def document(**source: object) -> dict[str, object]:
    return {"type": "document", "title": "A", "context": "From B", "source": source}


# What becomes of what.


def test_messages_of_one_role_are_one_turn() -> None:
    assert said(HI, user(text("a"), text("b")), {"role": "assistant", "content": "c"}) == [
        ("user", "hi\n\na\n\nb"),
        ("assistant", "c"),
    ]


def test_the_system_prompt_comes_first_and_others_stay_where_they_are() -> None:
    later = {"role": "system", "content": [text("Now be rude.")]}

    assert said(HI, later, HI, system="Be kind.") == [
        ("system", "Be kind."),
        ("user", "hi"),
        ("system", "Now be rude."),
        ("user", "hi"),
    ]


@pytest.mark.parametrize("system", ["", [], None, [text("")], [text("x-anthropic-billing-header: cch=1;")]])
def test_a_system_prompt_that_says_nothing_is_left_out(system: object) -> None:
    assert said(system=system) == [("user", "hi")]


def test_documents_and_search_results_are_texts() -> None:
    found = {"type": "search_result", "source": "https://a", "title": "A", "content": [text("x"), text("y")]}
    plain = document(type="text", media_type="text/plain", data="words")
    nested = {**document(type="content", content=[text("one"), text("two")]), "title": None, "context": None}

    (only,) = said(user(plain, found, nested))

    assert only == ("user", "A\n\nFrom B\n\nwords\n\nA\n\nhttps://a\n\nx\n\ny\n\none\n\ntwo")


def test_results_come_before_what_else_the_user_says() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("a"), text("b")]}

    assert said(user(text("Well?"), result)) == [("tool", "a\n\nb"), ("user", "Well?")]
    assert said(user({"type": "tool_result", "tool_use_id": "t1"})) == [("tool", "")]


def test_an_image_keeps_its_place_among_texts() -> None:
    ((_, content),) = said(user(text("a"), IMAGE, text("b")))

    assert isinstance(content, list)
    assert [part.type for part in content] == ["text", "image_url", "text"]
    assert json.loads(bytes(content[1].image_url)) == {"url": "data:image/png;base64,QUJD"}


def test_an_answer_with_calls_alone_has_no_text() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": [1, 2.50]}}

    (message,) = chat({"role": "assistant", "content": [call]}).messages

    assert message.content is None
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"a": [1, 2.5]}


def test_tools_that_may_not_be_called_are_still_told() -> None:
    asked = chat(tools=[LOOK], tool_choice={"type": "none"})

    assert asked.tools is not None
    assert asked.tool_choice == "none"
    assert chat(tool_choice={"type": "auto"}).tool_choice is None


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, True),
        ({"type": "enabled", "budget_tokens": 2000}, True),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "disabled"}, False),
    ],
)
def test_whether_to_think_is_a_matter_of_the_template(thinking: Any, shown: bool) -> None:
    known = parsed(thinking=thinking)
    told = json.loads(known.openai_body(b""))

    wanted = None if thinking is None else {"enable_thinking": thinking["type"] != "disabled"}
    assert told.get("chat_template_kwargs") == wanted
    assert "metadata" not in told
    assert known.shows_thinking is shown


def test_the_request_for_servers_of_openais_api_has_what_they_know() -> None:
    known = parsed(
        stream=True,
        stop_sequences=["x"],
        tools=[{**LOOK, "description": "d", "strict": True, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "any"},
        metadata={"user_id": "u"},
        temperature=1,
        top_p=0.5,
        top_k=3,
    )

    assert json.loads(known.openai_body(b"")) == {
        "model": "m",
        "stream": True,
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": 3,
        "stop": ["x"],
        "user": "u",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "d",
                    "parameters": {"type": "object"},
                    "strict": True,
                },
            }
        ],
        "tool_choice": "required",
    }


def test_tokens_are_counted_of_the_same_chat() -> None:
    body = {**ASK, "system": "s", "tools": [LOOK]}
    del body["max_tokens"]

    known = ENDPOINTS[COUNT_TOKENS].parse(json.dumps(body).encode())

    assert isinstance(known.request, TokenizeRequest)
    prompt = known.request.prompt
    assert isinstance(prompt, ChatRequest)
    assert known.request.model == "m"
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert json.loads(known.openai_body(b""))["messages"][0] == {"role": "system", "content": "s"}


def _words_of(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            words = block["text"]
        case "tool_result":
            words = block["content"]
        case "document":
            words = block["source"]["data"]
        case _:
            words = ""
    return str(words)


_WORDS = st.text(max_size=4)
_BLOCKS = st.one_of(
    st.builds(text, _WORDS),
    st.just(IMAGE),
    st.builds(lambda words: {"type": "tool_result", "tool_use_id": "t", "content": words}, _WORDS),
    st.builds(lambda words: document(type="text", data=words), _WORDS),
)


@given(
    st.lists(st.builds(lambda blocks: user(*blocks), st.lists(_BLOCKS, max_size=4)), min_size=1, max_size=4)
)
def test_nothing_that_a_user_says_is_lost(messages: list[dict[str, Any]]) -> None:
    blocks = [block for message in messages for block in message["content"]]
    made = chat(*messages).messages

    parts = [part for message in made if isinstance(message.content, list) for part in message.content]
    texts = [message.content for message in made if isinstance(message.content, str)]
    told = "\n\n".join([*texts, *(part.text for part in parts)])
    assert all(_words_of(block) in told for block in blocks)
    images = [block for block in blocks if block["type"] == "image"]
    assert len([part for part in parts if part.type == "image_url"]) == len(images)
    roles = [message.role for message in made]
    assert roles.count("user") <= 1
    assert roles.count("tool") == len([block for block in blocks if block["type"] == "tool_result"])


# What is refused.


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens must be a whole number, not null"),
    ({"max_tokens": 0}, "max_tokens must be 1 or more"),
    ({"max_tokens": "9"}, "max_tokens must be a whole number, not a text"),
    ({"messages": []}, "messages must not be empty"),
    ({"messages": "hi"}, "messages must be a list, not a text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "use user or assistant or system"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "must be a text or a list, not a whole number"),
    ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type is missing"),
    ({"messages": [user({"type": "container_upload"})]}, "cannot be 'container_upload'; use text or image"),
    ({"messages": [user({"type": "tool_use", "id": "t", "name": "f", "input": {}})]}, "of type 'tool_use'"),
    ({"messages": [user({"type": "thinking", "thinking": "x"})]}, "of type 'thinking'"),
    ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "of type 'image'"),
    ({"messages": [{"role": "system", "content": [IMAGE]}]}, "of type 'image'"),
    (
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": 1}]}
            ]
        },
        "the input of tool_use 'f' must be an object",
    ),
    (
        {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
        "files are not kept",
    ),
    (
        {"messages": [user({"type": "image", "source": {**IMAGE["source"], "media_type": "image/tiff"}})]},  # type: ignore[dict-item]
        "media_type must be one of image/jpeg",
    ),
    ({"messages": [user(document(type="base64", media_type="application/pdf", data="QQ=="))]}, "such as PDF"),
    ({"messages": [user(document(type="url", url="https://a/b.pdf"))]}, "such as PDF"),
    ({"system": 5}, "system must be a text or a list"),
    ({"system": [IMAGE]}, "system[0].type cannot be 'image'; use text"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema must be an object"),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name must not be empty"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs on Anthropic's servers only"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "is known to their models only"),
    ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
    ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "g"}}, "names 'g', which is not among tools"),
    ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type cannot be 'some'; use auto or any or tool or none"),
    ({"tool_choice": "auto"}, "tool_choice must be an object, not a text"),
    ({"thinking": {"type": "deeply"}}, "thinking.type cannot be 'deeply'; use enabled"),
    ({"stop_sequences": [""]}, "stop_sequences[0] must not be empty"),
    ({"stop_sequences": "x"}, "stop_sequences must be a list"),
    ({"stream": "yes"}, "stream must be true or false"),
    ({"temperature": 3}, "temperature must be 2 or less"),
    ({"output_config": {"format": {"type": "json_schema", "schema": 1}}}, "schema must be an object"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers are called by Anthropic's own servers only"),
    ({"container": "c"}, "container: there is none"),
    ({"metadata": []}, "metadata must be an object, not a list"),
]


@pytest.mark.parametrize(("body", "words"), WRONG)
def test_what_cannot_be_understood_or_done_is_refused_with_its_reason(
    body: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        parsed(**body)

    assert words in refused.value.message
    assert refused.value.param


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model":"m"}', b'"text"', b"[" * 20_000])
def test_a_body_that_is_no_request_is_refused(path: str, body: bytes) -> None:
    with pytest.raises(InvalidField):
        ENDPOINTS[path].parse(body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["text", "image", "user", "tool", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "text", "role", "source", "name"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(["messages", "system", "tools", "tool_choice", "thinking", "output_config"]), _JSON)
def test_whatever_stands_in_a_field_is_understood_or_refused(field: str, value: object) -> None:
    with suppress(InvalidField):
        known = parsed(**{field: value})
        assert json.loads(known.openai_body(b""))["model"] == "m"


def test_fields_that_nothing_reads_are_ignored() -> None:
    body = {"service_tier": "auto", "context_management": {"edits": []}, "speed": "fast", "unheard_of": 1}

    assert chat(**body) == chat()
