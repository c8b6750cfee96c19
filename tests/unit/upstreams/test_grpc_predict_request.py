import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.predict_request import (
    GenerationRequest,
    Preset,
    chat_generations,
    completion_generations,
)
from tests.support.grpc_calls import HELLO, call_of, config_of

SEEN, HEARD = "A" * 64, "B" * 64
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def sent(generation: GenerationRequest) -> pb.PredictOptions:
    return pb.PredictOptions.FromString(b"".join(generation.message()))


def _chats(config: ModelConfig | None = None, **body: Any) -> Sequence[GenerationRequest]:
    call = call_of(RequestKind.CHAT, {**HELLO, **body}, config)
    assert isinstance(call.request, ChatRequest)
    preset, draw = Preset(call.model, Grammars()), itertools.count(100).__next__
    return at_once(chat_generations(preset, call, call.request, draw))


def _chat(config: ModelConfig | None = None, **body: Any) -> pb.PredictOptions:
    (generation,) = _chats(config, **body)
    return sent(generation)


def _completions(config: ModelConfig | None = None, **body: Any) -> Sequence[GenerationRequest]:
    call = call_of(RequestKind.COMPLETION, body, config)
    assert isinstance(call.request, CompletionRequest)
    preset, draw = Preset(call.model, Grammars()), itertools.count(100).__next__
    return at_once(completion_generations(preset, call, call.request, draw))


def _parameters(**keys: object) -> ModelConfig:
    return config_of(parameters={"model": "m.bin", **keys})


def test_a_chat_is_left_to_the_models_own_template() -> None:
    options = _chat()

    assert (options.UseTokenizerTemplate, options.Prompt) == (True, "")
    assert [(message.role, message.content) for message in options.Messages] == [("user", "hello")]


def test_written_templates_are_rendered() -> None:
    options = _chat(
        config_of(template={"chat_message": "<{{.RoleName}}>{{.Content}}", "chat": "{{.Input}}|"})
    )

    assert (options.UseTokenizerTemplate, list(options.Messages)) == (False, [])
    assert options.Prompt == "<user>hello|"


def test_the_models_own_template_goes_before_written_ones_when_asked_for() -> None:
    options = _chat(config_of(template={"chat": "{{.Input}}", "use_tokenizer_template": True}))

    assert (options.UseTokenizerTemplate, options.Prompt) == (True, "")


def test_every_request_says_which_model_it_is_for_and_which_request_it_is() -> None:
    options = _chat()

    assert (options.ModelIdentity, options.CorrelationId) == ("m.bin", "r1")


def test_sampling_has_its_usual_values() -> None:
    options = _chat()

    assert [options.Temperature, options.TopP] == pytest.approx([0.9, 0.95])
    assert (options.MinP, options.TypicalP, options.TailFreeSamplingZ) == (0, 1, 1)
    assert (options.Mirostat, options.MirostatTAU) == (0, 5)
    assert options.MirostatETA == pytest.approx(0.1)


def test_fields_beside_openais_reach_the_backend() -> None:
    options = _chat(
        typical_p=0.5, tfs_z=0.25, mirostat=2, mirostat_tau=3, mirostat_eta=0.5, repeat_last_n=-1, n_keep=9,
        ignore_eos=True,
    )  # fmt: skip

    assert (options.TypicalP, options.TailFreeSamplingZ, options.Repeat) == (0.5, 0.25, -1)
    assert (options.Mirostat, options.MirostatTAU, options.MirostatETA) == (2, 3, 0.5)
    assert (options.NKeep, options.IgnoreEOS) == (9, True)


def test_nothing_is_penalized_within_the_last_0_tokens() -> None:
    penalties: dict[str, Any] = {"repeat_penalty": 1.5, "frequency_penalty": 1, "presence_penalty": 1}
    by_request = _chat(repeat_last_n=0, **penalties)
    by_config = _chat(_parameters(repeat_last_n=0), **penalties)
    not_said = _chat(**penalties)

    for options in (by_request, by_config):
        assert (options.Penalty, options.FrequencyPenalty, options.PresencePenalty) == (1, 0, 0)
    assert (not_said.Penalty, not_said.FrequencyPenalty, not_said.PresencePenalty) == (1.5, 1, 1)


@pytest.mark.parametrize(
    ("backend", "top_k"), [("llama-cpp", 40), ("cuda12-llama-cpp", 40), ("", 40), ("vllm", 0)]
)
def test_top_k_is_usual_only_with_llama_cpp(backend: str, top_k: int) -> None:
    assert _chat(config_of(backend=backend)).TopK == top_k


def test_the_configuration_goes_before_the_usual_and_the_request_before_both() -> None:
    config = _parameters(temperature=0.5, top_k=7, presence_penalty=0.25)

    options = _chat(config, temperature=0, presence_penalty=1)

    assert (options.Temperature, options.TopK, options.PresencePenalty) == (0, 7, 1)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 30),
        ({"max_tokens": 20}, 20),
        ({"max_tokens": 20, "max_completion_tokens": 10}, 10),
    ],
)
def test_the_most_tokens_are_those_of_the_closest_word(body: dict[str, Any], tokens: int) -> None:
    assert _chat(_parameters(max_tokens=30), **body).Tokens == tokens


@pytest.mark.parametrize(("stop", "told"), [(None, ["A"]), ("B", ["A", "B"]), (["B", "C"], ["A", "B", "C"])])
def test_stops_of_model_and_request_add_up(stop: object, told: list[str]) -> None:
    assert list(_chat(config_of(stopwords=["A"]), stop=stop).StopPrompts) == told


@pytest.mark.parametrize(
    ("configured", "asked", "seed"),
    [(None, None, 100), (-1, None, 100), (5, None, 5), (5, -1, 100), (5, 6, 6), (None, 1 << 40, 0)],
)
def test_a_seed_is_drawn_unless_one_is_given(configured: int | None, asked: int | None, seed: int) -> None:
    assert _chat(_parameters(seed=configured), seed=asked).Seed == seed


def test_several_answers_have_seeds_of_their_own() -> None:
    assert [generation.seed for generation in _chats(n=3)] == [100, 101, 102]
    assert [generation.seed for generation in _chats(n=2, seed=7)] == [7, 8]


def test_biases_are_told_as_json() -> None:
    assert json.loads(_chat(logit_bias={"15": -100}).LogitBias) == {"15": -100}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, (0, 0)),
        ({"top_logprobs": 5}, (0, 0)),
        ({"logprobs": True}, (1, 1)),
        ({"logprobs": True, "top_logprobs": 5}, (5, 5)),
    ],
)
def test_probabilities_are_asked_for_only_by_their_switch(
    body: dict[str, Any], told: tuple[int, int]
) -> None:
    options = _chat(**body)

    assert (options.Logprobs, options.TopLogprobs) == told


def test_tools_are_passed_on_as_they_were_written() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    tool = {**TOOL, "extra": 1}

    options = _chat(tools=[tool], tool_choice=choice)

    assert (json.loads(options.Tools), json.loads(options.ToolChoice)) == ([tool], choice)
    assert options.Grammar == ""


def test_a_choice_in_one_word_is_json_too() -> None:
    assert _chat(tools=[TOOL], tool_choice="auto").ToolChoice == '"auto"'
    assert _chat(tools=[TOOL]).ToolChoice == ""


def test_messages_keep_what_belongs_to_tools() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "hm"},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"},
    ]

    rules, call, answer = _chat(messages=messages).Messages

    assert (rules.role, rules.content) == ("system", "be brief")
    assert (json.loads(call.tool_calls), call.content, call.reasoning_content) == ([called], "", "hm")
    assert (answer.role, answer.tool_call_id, answer.name) == ("tool", "c1", "weather")


def test_the_configured_system_prompt_stands_in_for_a_missing_one() -> None:
    config = config_of(system_prompt="be kind")
    own = [{"role": "system", "content": "be rude"}, {"role": "user", "content": "hello"}]

    assert [message.content for message in _chat(config).Messages] == ["be kind", "hello"]
    assert [message.content for message in _chat(config, messages=own).Messages] == ["be rude", "hello"]


def test_parts_become_text_and_media() -> None:
    parts = [
        {"type": "text", "text": "what "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SEEN}"}},
        {"type": "text", "text": "is this?"},
        {"type": "input_audio", "input_audio": {"data": HEARD, "format": "wav"}},
    ]

    options = _chat(messages=[{"role": "user", "content": parts}])

    assert options.Messages[0].content == "what is this?"
    assert (list(options.Images), list(options.Audios)) == ([SEEN], [HEARD])


def test_a_rendered_prompt_has_a_marker_for_each_thing_to_be_seen() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": SEEN}}]
    config = config_of(template={"chat_message": "{{.Content}}", "chat": "{{.Input}}"})

    options = _chat(config, messages=[{"role": "user", "content": parts}])

    assert (options.Prompt, list(options.Images)) == ("<__media__>look", [SEEN])


@pytest.mark.parametrize(
    ("config", "body", "told"),
    [
        ({}, {}, {}),
        ({"reasoning": {"disable": True}}, {}, {"enable_thinking": "false"}),
        ({"reasoning": {"disable": False}}, {}, {"enable_thinking": "true"}),
        ({"reasoning_effort": "low"}, {}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        (
            {"reasoning": {"disable": False}},
            {"metadata": {"enable_thinking": "false", "team": "blue"}},
            {"enable_thinking": "false", "team": "blue"},
        ),
    ],
)
def test_metadata_say_how_to_think(
    config: dict[str, object], body: dict[str, Any], told: dict[str, str]
) -> None:
    metadata = dict(_chat(config_of(**config), **body).Metadata)
    metadata.pop("chat_template_kwargs", None)

    assert metadata == told


def test_template_arguments_are_the_configured_ones_and_how_to_think() -> None:
    config = config_of(chat_template_kwargs={"style": "terse"}, reasoning={"disable": True})

    told = _chat(config, reasoning_effort="low").Metadata["chat_template_kwargs"]

    assert json.loads(told) == {"style": "terse", "enable_thinking": False, "reasoning_effort": "low"}


def test_a_chats_grammar_is_the_requests_not_the_configured_one() -> None:
    config = config_of(grammar="root ::= configured")

    assert _chat(config).Grammar == ""
    assert _chat(config, grammar="root ::= mine").Grammar == "root ::= mine"


def test_a_completion_is_its_prompt() -> None:
    (generation,) = _completions(config_of(grammar="root ::= configured"), prompt="once", logprobs=0)

    options = sent(generation)
    assert (options.Prompt, options.UseTokenizerTemplate) == ("once", False)
    assert (options.Grammar, options.Logprobs, options.TopLogprobs) == ("root ::= configured", 1, 1)


def test_a_completion_is_rendered_by_its_template() -> None:
    (generation,) = _completions(config_of(template={"completion": "Go on: {{.Input}}"}), prompt="once")

    assert sent(generation).Prompt == "Go on: once"


def test_each_prompt_of_a_completion_has_its_answers() -> None:
    generations = _completions(prompt=["a", "b"], n=2)

    assert [(one.prompt, one.rendered) for one in generations] == [(0, "a"), (0, "a"), (1, "b"), (1, "b")]
    assert len({one.seed for one in generations}) == 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": [1, 2]}, "tokens"),
        ({"prompt": [[1], [2]]}, "tokens"),
        ({"prompt": ["a", 1]}, "tokens"),
        ({"prompt": []}, "empty"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": ["a"] * 100, "n": 100}, "answers"),
    ],
)
def test_a_completion_that_no_backend_could_make_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        _completions(**body)


@pytest.mark.parametrize(("given", "told"), [("hm", "hm"), ({"steps": []}, ""), (None, "")])
def test_thoughts_are_taken_under_their_other_name_too(given: object, told: str) -> None:
    messages = [{"role": "assistant", "content": "hi", "reasoning": given}]
    assert _chat(messages=messages).Messages[0].reasoning_content == told
