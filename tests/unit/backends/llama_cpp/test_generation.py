"""What the engine is asked for."""

import json
from typing import Any

import pytest

from remuda.backends.llama_cpp.generation import BadRequest, Generation, plan_generation
from remuda.core.slices import at_once
from remuda.rpc import backend_pb2 as pb

CONTEXT = 2048
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
NAMED = json.dumps({"type": "function", "function": {"name": "clock"}})


def planned(options: pb.PredictOptions, context: int, *, template_has_tools: bool = True) -> Generation:
    return at_once(plan_generation(options, context, template_has_tools=template_has_tools))


def prompted(**options: Any) -> Generation:
    return planned(pb.PredictOptions(Prompt="Once", **options), CONTEXT)


def chatted(*, template_has_tools: bool = True, **options: Any) -> Generation:
    question = [pb.Message(role="user", content="Hello")]
    return planned(
        pb.PredictOptions(**{"Messages": question, "UseTokenizerTemplate": True, **options}),
        CONTEXT,
        template_has_tools=template_has_tools,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"Grammar": "root ::= " + "(" * 100_000},
        {"Grammar": "root ::= " + '"a" | ' * 60_000 + '"a"'},
        {
            "Grammar": "root ::= r0\n"
            + "".join(f'r{n} ::= r{n + 1} r{n + 1} | ""\n' for n in range(20))
            + 'r20 ::= ""'
        },
        {"Metadata": {"json_schema": json.dumps({"enum": [*range(60_000)]})}},
        {"Metadata": {"json_schema": json.dumps({"pattern": "(" * 100_000})}},
        {"Metadata": {"json_schema": "[" * 100_000}},
        {"Tools": json.dumps([{"function": {"name": "a", "parameters": {"enum": [*range(60_000)]}}}])},
    ],
    ids=["parentheses", "alternatives", "expansion", "values", "pattern", "deep", "tools"],
)
def test_what_would_hold_up_or_end_the_engine_never_reaches_it(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        chatted(**options)


def test_a_prompt_is_completed_and_messages_are_a_chat() -> None:
    assert (prompted().path, prompted().body["prompt"]) == ("/completion", "Once")
    assert (chatted().path, chatted().body["messages"]) == (
        "/v1/chat/completions",
        [{"role": "user", "content": "Hello"}],
    )


@pytest.mark.parametrize(("asked", "sent"), [(-1, CONTEXT), (8, 8), (0, None)])
def test_repetitions_are_looked_for_in_so_many_tokens(asked: int, sent: int | None) -> None:
    """The engine itself takes no -1; 0 stands for "not said"."""
    assert prompted(Repeat=asked).body.get("repeat_last_n") == sent


def test_messages_without_the_wish_for_a_template_leave_the_prompt_in_force() -> None:
    assert not planned(
        pb.PredictOptions(Prompt="Once", Messages=[pb.Message(role="user", content="Hello")]), CONTEXT
    ).chat


@pytest.mark.parametrize(("asked", "bound"), [(7, 7), (0, CONTEXT), (-1, CONTEXT)])
def test_an_answer_always_has_a_bound(asked: int, bound: int) -> None:
    assert prompted(Tokens=asked).body["max_tokens"] == bound
    assert chatted(Tokens=asked).body["max_tokens"] == bound


@pytest.mark.parametrize("template", [True, False])
def test_nothing_to_answer_is_refused(template: bool) -> None:
    with pytest.raises(BadRequest, match="both empty"):
        planned(pb.PredictOptions(UseTokenizerTemplate=template), CONTEXT)


def test_sampling_is_passed_on_and_what_was_not_chosen_is_left_to_the_engine() -> None:
    body = prompted(Temperature=0.5, TopK=20, Penalty=1.25, StopPrompts=["end"], Seed=-1).body
    assert (body["temperature"], body["top_k"], body["repeat_penalty"]) == (0.5, 20, 1.25)
    assert (body["stop"], body["seed"]) == (["end"], -1)
    assert not {"top_p", "typical_p", "mirostat", "grammar", "logit_bias"} & set(body)


def test_the_likeliest_token_needs_no_sorting() -> None:
    assert prompted(Temperature=0, TopK=40).body["top_k"] == 1


def test_what_a_template_is_told_comes_from_the_metadata() -> None:
    metadata = {
        "enable_thinking": "false",
        "reasoning_effort": "low",
        "chat_template_kwargs": '{"enable_thinking": true, "style": "brief"}',
    }
    assert chatted(Metadata=metadata).body["chat_template_kwargs"] == {
        "enable_thinking": True,  # Whoever built the object had seen the other keys.
        "reasoning_effort": "low",
        "style": "brief",
    }


def test_tools_bring_their_own_grammar() -> None:
    body = chatted(Tools=json.dumps(TOOLS), ToolChoice='"auto"', Grammar='root ::= "x"').body
    assert (body["tools"], body["tool_choice"], "grammar" in body) == (TOOLS, "auto", False)


@pytest.mark.parametrize(("choice", "offered"), [("required", [*TOOLS, CLOCK]), (NAMED, [CLOCK])])
def test_a_call_that_must_be_made_is_bound_by_its_schema_and_the_template_told_of_the_tools(
    choice: str, offered: list[Any]
) -> None:
    tools, metadata = json.dumps([*TOOLS, CLOCK]), {"enable_thinking": "false"}
    planned = chatted(Tools=tools, ToolChoice=choice, Grammar='root ::= "x"', Metadata=metadata)
    assert planned.forced_call
    assert planned.body["chat_template_kwargs"] == {"enable_thinking": False, "tools": offered}
    schema: Any = planned.body["json_schema"]
    names = [call["properties"]["name"]["const"] for call in schema["anyOf"]]
    assert names == [tool["function"]["name"] for tool in offered]
    assert not {"tools", "tool_choice", "grammar"} & set(planned.body)


@pytest.mark.parametrize("choice", [NAMED, '{"type": "function"}', '{"function": "clock"}'])
def test_a_choice_of_what_is_not_there_is_refused(choice: str) -> None:
    with pytest.raises(BadRequest, match="ToolChoice"):
        chatted(Tools=json.dumps(TOOLS), ToolChoice=choice)


@pytest.mark.parametrize("choice", ["required", '"required"', NAMED])
def test_a_template_without_tools_binds_a_forced_call_by_its_schema(choice: str) -> None:
    planned = chatted(
        template_has_tools=False, Tools=json.dumps([CLOCK]), ToolChoice=choice, Grammar='root ::= "x"'
    )
    assert planned.forced_call
    body: Any = planned.body
    assert [call["properties"]["name"] for call in body["json_schema"]["anyOf"]] == [{"const": "clock"}]
    assert "clock" in body["messages"][0]["content"]
    assert not {"tools", "tool_choice", "grammar"} & set(planned.body)


def test_a_template_without_tools_leaves_the_callers_grammar_in_force() -> None:
    planned = chatted(template_has_tools=False, Tools=json.dumps(TOOLS), Grammar='root ::= "x"')
    assert (planned.forced_call, planned.body["grammar"], "tools" in planned.body) == (
        False,
        'root ::= "x"',
        False,
    )


@pytest.mark.parametrize("tools", [["clock"], [{"type": "function"}], [{"function": {"name": 1}}, 2]])
def test_tools_that_are_none_are_refused_where_they_must_be_called(tools: list[Any]) -> None:
    with pytest.raises(BadRequest, match="Tools"):
        chatted(template_has_tools=False, Tools=json.dumps(tools), ToolChoice="required")


@pytest.mark.parametrize("choice", ["auto", '"auto"'])
def test_a_choice_of_tools_may_be_a_bare_word(choice: str) -> None:
    assert chatted(Tools=json.dumps(TOOLS), ToolChoice=choice).body["tool_choice"] == "auto"


def test_a_conversation_keeps_its_tool_calls_and_reasoning() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    messages = [
        pb.Message(role="assistant", reasoning_content="hm", tool_calls=json.dumps(calls)),
        pb.Message(role="tool", content="rain", tool_call_id="1", name="weather"),
    ]
    assert chatted(Messages=messages).body["messages"] == [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "1", "name": "weather"},
    ]


def test_images_go_with_the_last_thing_the_user_said() -> None:
    messages = [
        pb.Message(role="user", content="first"),
        pb.Message(role="user", content="What is this?"),
        pb.Message(role="assistant", content="Well"),
    ]
    said: Any = chatted(Messages=messages, Images=["QUJD"]).body["messages"]
    first, last, _ = said
    assert first["content"] == "first"
    assert last["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}},
    ]
    assert prompted(Images=["data:image/png;base64,QUJD"]).body["prompt"] == {
        "prompt_string": "Once",
        "multimodal_data": ["QUJD"],
    }


def test_images_without_a_user_are_refused() -> None:
    with pytest.raises(BadRequest, match="message of the user"):
        chatted(Messages=[pb.Message(role="system", content="x")], Images=["QUJD"])


@pytest.mark.parametrize(
    ("metadata", "schema"),
    [
        ({"json_schema": '{"type": "array"}'}, {"type": "array"}),
        ({"response_format": '{"type": "json_object"}'}, {"type": "object"}),
        (
            {"response_format": '{"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}'},
            {"type": "integer"},
        ),
        ({"response_format": '{"type": "text"}'}, None),
    ],
)
def test_a_schema_can_be_named_in_two_ways(metadata: dict[str, str], schema: object) -> None:
    assert prompted(Metadata=metadata).body.get("json_schema") == schema


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"LogitBias": "{"}, "LogitBias is not JSON"),
        ({"LogitBias": "[]"}, "LogitBias is JSON of the wrong kind"),
        ({"Tools": "{}"}, "Tools is JSON of the wrong kind"),
        ({"Metadata": {"chat_template_kwargs": "1"}}, "chat_template_kwargs is JSON of the wrong kind"),
        ({"Metadata": {"json_schema": "x"}}, "json_schema is not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        chatted(**options)


def test_chances_are_asked_for_as_each_kind_of_request_knows_them() -> None:
    assert prompted(Logprobs=1, TopLogprobs=3).body["n_probs"] == 3
    body = chatted(Logprobs=1, TopLogprobs=3).body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
