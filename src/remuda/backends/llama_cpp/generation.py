"""From PredictOptions to the engine's request for text. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remuda.backends.llama_cpp.forced_calls import Tools, call_schema, with_tools_named
from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar
from remuda.core.schema_shape import SchemaShape
from remuda.core.slices import Sliced
from remuda.rpc import backend_pb2 as pb

_SAMPLING = (  # Sent as they are: zero has its plain meaning, such as the likeliest token for a temperature.
    ("Temperature", "temperature"),
    ("TopK", "top_k"),
    ("MinP", "min_p"),
    ("FrequencyPenalty", "frequency_penalty"),
    ("PresencePenalty", "presence_penalty"),
    ("Seed", "seed"),
    ("IgnoreEOS", "ignore_eos"),
)
_SAMPLING_UNLESS_ZERO = (  # Zero would make no sense and means that nothing was chosen.
    ("TopP", "top_p"),
    ("TypicalP", "typical_p"),
    ("Penalty", "repeat_penalty"),
    ("Repeat", "repeat_last_n"),
    ("NKeep", "n_keep"),
    ("Mirostat", "mirostat"),
    ("MirostatTAU", "mirostat_tau"),
    ("MirostatETA", "mirostat_eta"),
    ("Grammar", "grammar"),
)


class BadRequest(Exception):
    """The caller's options cannot be understood; says which."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A request, and whether it is a chat: the engine then takes reasoning and tool calls out of the text."""

    chat: bool
    body: Mapping[str, object]
    forced_call: bool = False  # All of the text is a call of a tool, which the engine does not know of.

    @property
    def bound(self) -> bool:
        """Whether the engine follows a grammar, given or made by itself."""
        return any(self.body.get(name) for name in ("grammar", "json_schema", "tools"))

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/completion"


def plan_generation(
    options: pb.PredictOptions, context_size: int, *, template_has_tools: bool = True
) -> Sliced[Generation]:
    """What to ask the engine for; BadRequest says what is wrong with `options`. In slices, for the check of a
    large grammar takes half a second.

    Never more tokens than the context holds: an engine left without a bound may never stop.
    """
    body: dict[str, object] = {
        "stream": True,
        "return_progress": True,  # A sign of life from each batch of a long prompt.
        "cache_prompt": True,
        "max_tokens": options.Tokens if options.Tokens > 0 else context_size,
    }
    body |= {name: getattr(options, field) for field, name in _SAMPLING}
    body |= {name: value for field, name in _SAMPLING_UNLESS_ZERO if (value := getattr(options, field))}
    if options.Repeat < 0:  # All there is; the engine takes numbers only.
        body["repeat_last_n"] = context_size
    if options.Temperature <= 0:
        body["top_k"] = 1  # The same token, without sorting the whole vocabulary for it.
    if options.StopPrompts:
        body["stop"] = list(options.StopPrompts)
        body["verbose"] = True  # Has the last event tell at which of them a chat ended.
    if options.LogitBias:
        body["logit_bias"] = _json("LogitBias", options.LogitBias, dict)
    if schema := _schema(options.Metadata):
        body["json_schema"] = schema
    yield from _check_shape(options.Grammar, schema)
    if options.UseTokenizerTemplate and options.Messages:
        body |= dict(_chat(options))
        if options.Tools:
            return (yield from _with_tools(body, options, template_has_tools))
        return Generation(True, body)
    if not options.Prompt:
        raise BadRequest("there is nothing to answer: Messages and Prompt are both empty")
    return Generation(False, body | dict(_completion(options)))


def _with_tools(
    body: Mapping[str, object], options: pb.PredictOptions, template_has_tools: bool
) -> Sliced[Generation]:
    """An engine does not hold every model to a call that it must make, and forgets tools for which a template
    has no place: such a call is bound by a schema of ours."""
    tools, choice = _choice(options)
    yield from _check_shape("", tools)
    unbound = {name: value for name, value in body.items() if name not in ("grammar", "json_schema")}
    if choice == "required" and tools:
        return Generation(True, unbound | _forced(tools, body, template_has_tools), forced_call=True)
    if template_has_tools:  # The engine derives a grammar from them, and refuses another one beside it.
        return Generation(True, unbound | {"tools": tools, "tool_choice": choice})
    return Generation(True, body)


def _forced(tools: Tools, body: Mapping[str, Any], template_has_tools: bool) -> dict[str, object]:
    """The template is given the tools where it has a place for them; the engine is not, which refuses a
    schema beside them."""
    try:
        bound: dict[str, object] = {"json_schema": call_schema(tools)}
        if template_has_tools:
            return bound | {"chat_template_kwargs": {**body.get("chat_template_kwargs", {}), "tools": tools}}
        return bound | {"messages": with_tools_named(tools, body["messages"])}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest("Tools are not a list of functions with names and parameters") from error


def _check_shape(grammar: str, schema: object) -> Sliced[None]:
    """A grammar, given or derived, that is too much for the engine would end it or hold it up for minutes."""
    try:
        yield from check_grammar(grammar)
        yield from SchemaShape().check(schema)
    except Invalid as error:
        raise BadRequest(str(error)) from None


def _choice(options: pb.PredictOptions) -> tuple[Tools, str]:
    """Of tools and of words that the engine knows: it overlooks the name of a single one."""
    tools = _json("Tools", options.Tools, list)
    choice = _tool_choice(options.ToolChoice) if options.ToolChoice else "auto"
    if isinstance(choice, str):
        return tools, choice
    try:
        wanted = choice["function"]["name"]
        named = [tool for tool in tools if tool["function"]["name"] == wanted]
    except (KeyError, TypeError) as error:
        raise BadRequest("ToolChoice or Tools have no function with a name") from error
    if not named:
        raise BadRequest(f"ToolChoice names {str(wanted)[:80]!r}, which is not among Tools")
    return named, "required"


def _completion(options: pb.PredictOptions) -> Iterator[tuple[str, object]]:
    media = [_base64(item) for item in (*options.Images, *options.Audios)]
    yield "prompt", {"prompt_string": options.Prompt, "multimodal_data": media} if media else options.Prompt
    if options.Logprobs or options.TopLogprobs:
        yield "n_probs", max(options.Logprobs, options.TopLogprobs)


def _chat(options: pb.PredictOptions) -> Iterator[tuple[str, object]]:
    yield "messages", chat_messages(options)
    yield "timings_per_token", True  # Where a chat's events count tokens.
    if options.Logprobs or options.TopLogprobs:
        yield "logprobs", True
        yield "top_logprobs", max(options.Logprobs, options.TopLogprobs)
    if kwargs := template_arguments(options.Metadata):
        yield "chat_template_kwargs", kwargs


def template_arguments(metadata: Mapping[str, str]) -> dict[str, object]:
    """What the model's chat template is given beside the messages."""
    kwargs: dict[str, object] = {}
    if effort := metadata.get("reasoning_effort"):
        kwargs["reasoning_effort"] = effort
    if thinking := metadata.get("enable_thinking"):
        kwargs["enable_thinking"] = thinking.lower() == "true"
    if given := metadata.get("chat_template_kwargs"):
        kwargs |= _json("chat_template_kwargs", given, dict)
    return kwargs


def chat_messages(options: pb.PredictOptions) -> list[dict[str, object]]:
    """OpenAI's form of the messages; what is to be seen or heard belongs to the last one of the user."""
    messages = [_message(message) for message in options.Messages]
    media = [*map(_image, options.Images), *map(_audio, options.Audios)]
    if media:
        last_question = next((m for m in reversed(messages) if m["role"] == "user"), None)
        if last_question is None:
            raise BadRequest("Images and Audios need a message of the user to go with")
        last_question["content"] = [{"type": "text", "text": last_question["content"]}, *media]
    return messages


def _message(message: pb.Message) -> dict[str, object]:
    rendered: dict[str, object] = {"role": message.role, "content": message.content}
    for field in ("name", "tool_call_id", "reasoning_content"):
        if value := getattr(message, field):
            rendered[field] = value
    if message.tool_calls:
        rendered["tool_calls"] = _json("tool_calls", message.tool_calls, list)
    return rendered


def _image(item: str) -> dict[str, object]:
    url = item if item.startswith("data:") else f"data:image/jpeg;base64,{item}"
    return {"type": "image_url", "image_url": {"url": url}}


def _audio(item: str) -> dict[str, object]:
    return {"type": "input_audio", "input_audio": {"data": _base64(item), "format": "wav"}}


def _base64(item: str) -> str:
    """Without the head of a data URL."""
    return item.partition(",")[2] if item.startswith("data:") else item


def _tool_choice(text: str) -> Any:
    """JSON by contract; some callers send the bare word."""
    return text if text in ("auto", "none", "required") else _json("ToolChoice", text, (str, dict))


def _schema(metadata: Mapping[str, str]) -> Mapping[str, object] | None:
    """The JSON schema an answer must follow: `json_schema`, or within OpenAI's `response_format`."""
    if text := metadata.get("json_schema"):
        return dict(_json("json_schema", text, dict))
    if text := metadata.get("response_format"):
        wanted = _json("response_format", text, dict)
        match wanted.get("type"):
            case "json_object":
                return {"type": "object"}
            case "json_schema":
                return dict((wanted.get("json_schema") or {}).get("schema") or {"type": "object"})
    return None


def _json(field: str, text: str, kinds: type | Sequence[type]) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{field} is not JSON: {error}") from error
    if not isinstance(value, kinds if isinstance(kinds, type) else tuple(kinds)):
        raise BadRequest(f"{field} is JSON of the wrong kind: {type(value).__name__}")
    return value
