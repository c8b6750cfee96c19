"""Prompts as LocalAI makes them: a template for each message, and one for all of them together; and as Ollama
does, by one template that is given the messages, or one that is given a question and its answer. Pure.

Only for models whose backend does not apply the model's own template.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Invalid, Misconfigured
from remuda.core.slices import Budget, Sliced
from remuda.models.config import ModelConfig, Template
from remuda.models.go_template import Data, GoTemplate, compile_template

__all__ = ["ChatMessage", "GoTemplate", "compile_template", "render_chat", "render_completion"]

STEPS_MAX: Final = 500_000  # Of all messages of a chat together; a step takes a microsecond or two.
_MESSAGE_STEPS: Final = 5  # What a message costs beside its template.
_CALLING: Final = (
    "assistant_function_call"  # The role of an assistant that calls, where a model file has one.
)
_SYSTEM: Final = "system"
_OLLAMAS: Final = re.compile(r"\.(Messages|Prompt|Response)\b")
_CUT: Final = "\0answer\0"  # Where the model goes on: what a template has behind its answer is left out.
_NAMES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; content parts that are no text have been replaced by markers."""

    role: str
    content: str = ""
    name: str = ""
    tool_calls_json: str = ""  # A list, as in a request; empty: none.
    tool_call_id: str = ""


def render_chat(
    config: ModelConfig, messages: Sequence[ChatMessage], functions_json: str = "", system_prompt: str = ""
) -> Sliced[str]:
    """The whole prompt. `functions_json` is a list of functions or tools, empty when none may be called.

    Misconfigured, naming the model, the template and the line, for a template that cannot be used.
    """
    template = config.template
    if not (template.chat or template.chat_message or config.roles):
        return _plain(messages, functions_json, system_prompt) + template.reply_prefix
    if is_ollamas(template.chat):
        return _by_ollamas(config, messages, functions_json, system_prompt) + template.reply_prefix
    if system_prompt and "SystemPrompt" not in template.chat + template.chat_message + template.function:
        messages = [ChatMessage(_SYSTEM, system_prompt), *messages]
    between = template.join_chat_messages_by_character
    rendered = yield from _each(config, messages, system_prompt)
    functions = _functions(functions_json)
    named = "function" if functions and template.function else "chat"
    data: Data = {
        "Input": ("\n" if between is None else between).join(rendered),
        "SystemPrompt": system_prompt,
        "SuppressSystemPrompt": not template.chat_message and any(m.role == _SYSTEM for m in messages),
        "Functions": functions,
        "Instruction": "",
        "MessageIndex": 0,
        "ReasoningEffort": config.reasoning_effort,
        "Metadata": {},
    }
    return _rendered(config, named, data) + template.reply_prefix


def render_completion(config: ModelConfig, prompt: str) -> str:
    """The prompt within `template.completion`, or as it is where there is none."""
    return _rendered(config, "completion", {"Input": prompt, "SystemPrompt": config.system_prompt})


def is_ollamas(text: str) -> bool:
    """Whether a template for chats is written as Ollama has them."""
    return ".Input" not in text and bool(_OLLAMAS.search(text))


def check_ollamas(text: str) -> None:
    """Misconfigured, with the reason, for a template of Ollama's that cannot be used here."""
    question, reply = ChatMessage("user", "question"), ChatMessage("assistant", "answer")
    config = ModelConfig(name="m", template=Template(chat=text))
    compile_template(text)  # Whose failures name no model: there is none yet.
    prompt = _by_ollamas(config, [question, reply, question], "", "system")
    if question.content not in prompt:
        raise Misconfigured("it leaves out what is asked")


def _by_ollamas(
    config: ModelConfig, messages: Sequence[ChatMessage], functions_json: str, system_prompt: str
) -> str:
    systems = [message.content for message in messages if message.role == _SYSTEM] or [system_prompt]
    functions = _functions(functions_json)
    tools: list[JsonValue] = [{"type": "function", "function": function} for function in functions]
    data: dict[str, JsonValue] = {
        "System": "\n\n".join(filter(None, systems)),
        "Messages": None,
        "Tools": tools or None,
        "Prompt": "",
        "Response": "",
        "Suffix": "",
        "Think": False,
        "ThinkLevel": "",
        "IsThinkSet": False,
    }
    if ".Messages" in config.template.chat:
        listed = messages
        if system_prompt and all(message.role != _SYSTEM for message in messages):
            listed = [ChatMessage(_SYSTEM, system_prompt), *messages]
        data["Messages"] = [_ollamas_message(message) for message in listed]
        return _rendered(config, "chat", data)
    prompts = list[str]()
    for question, reply in _turns(messages):
        turn = {**data, "Prompt": question, "Response": _CUT if reply is None else reply}
        prompts.append(_rendered(config, "chat", turn).partition(_CUT)[0])
        data["System"] = ""  # It stands before the first turn.
    return "".join(prompts)


def _turns(messages: Sequence[ChatMessage]) -> list[tuple[str, str | None]]:
    """What was asked, and what was answered: None where the model is to go on."""
    turns, question = list[tuple[str, str | None]](), list[str]()
    for message in messages:
        if message.role == "assistant":
            turns.append(("\n\n".join(question), message.content))
            question = []
        elif message.role != _SYSTEM:
            question.append(message.content)
    return [*turns, ("\n\n".join(question), None)]


def _ollamas_message(message: ChatMessage) -> JsonValue:
    calls: list[JsonValue] = []
    for number, call in enumerate(_parsed(message.tool_calls_json) or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            given = function.get("arguments")
            arguments = json.loads(given) if isinstance(given, str) and given else given
            called = {"Name": function.get("name"), "Arguments": arguments, "Index": number}
            calls.append({"ID": "", "Function": called})
    return {
        "Role": message.role,
        "Content": message.content,
        "Thinking": "",
        "Images": None,
        "ToolCalls": calls or None,
        "ToolName": message.name,
        "ToolCallID": message.tool_call_id,
    }


def _rendered(config: ModelConfig, named: str, data: Data, budget: Budget | None = None) -> str:
    """By the template of this name; without one the input stays as it is. `budget` is charged for it."""
    text = getattr(config.template, named)
    assert isinstance(text, str), f"{named} is a template"
    if not text:
        return str(data["Input"])
    try:
        if "{{" not in text:
            raise Misconfigured("it is no template: nothing in it stands for the messages")
        rendered, steps = compile_template(text).render_counted(data)
        if budget is not None:
            budget.charge(steps)
        return rendered
    except Misconfigured as error:
        raise Misconfigured(f"{config.id}: template.{named}: {error.message}") from None


def _each(config: ModelConfig, messages: Sequence[ChatMessage], system_prompt: str) -> Sliced[list[str]]:
    texts, budget = list[str](), Budget("the chat", STEPS_MAX)
    for index, message in enumerate(messages):
        if budget.spend(_MESSAGE_STEPS):
            yield
        calls = _parsed(message.tool_calls_json)
        role = message.role
        if calls and role == "assistant" and _CALLING in config.roles:
            role = _CALLING
        prefix = config.roles.get(role, "")
        if not config.template.chat_message:
            texts.append(_prefixed(prefix, replace(message, role=role)))
            continue
        last = index == len(messages) - 1
        data: Data = {
            "SystemPrompt": system_prompt,
            "Role": prefix,
            "RoleName": role,
            "FunctionName": message.name,
            "Content": message.content,
            "MessageIndex": index,
            "Function": bool(config.grammar) and last,
            "FunctionCall": calls,
            "LastMessage": last,
        }
        if text := _rendered(config, "chat_message", data, budget):
            texts.append(text)
    return texts


def _prefixed(prefix: str, message: ChatMessage) -> str:
    lines = [f"{prefix}{message.content}"] if message.content else []
    if message.tool_calls_json:
        lines.append(f"{prefix} {message.tool_calls_json}".strip())
    return "\n".join(lines)


def _plain(messages: Sequence[ChatMessage], functions_json: str, system_prompt: str) -> str:
    """For a model without a template: names before what each one said."""
    if functions_json:
        instructions = 'To call a function, answer only {"name": ..., "arguments": {...}}. Functions:'
        system_prompt = f"{system_prompt}\n{instructions} {functions_json}".lstrip()
    if system_prompt:
        messages = [ChatMessage(_SYSTEM, system_prompt), *messages]
    lines = [_prefixed(f"{_NAMES.get(message.role, message.role)}: ", message) for message in messages]
    return "\n".join([*lines, f"{_NAMES['assistant']}:"])


def _functions(functions_json: str) -> list[JsonValue]:
    """What templates call `.Functions`, of a list of functions or of tools that hold them."""
    parsed = _parsed(functions_json)
    functions: list[JsonValue] = []
    for item in parsed or ():
        inner = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(inner, dict):
            raise Invalid("tools: a function must be a map with a name")
        functions.append(
            {
                "name": inner.get("name") or "",
                "description": inner.get("description") or "",
                "parameters": inner.get("parameters"),
            }
        )
    return functions


def _parsed(text: str) -> list[JsonValue] | None:
    """The list in a JSON text; None for no text."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise Invalid("the functions or calls of a message are not JSON") from None
    if value is None or isinstance(value, list):
        return value
    raise Invalid("the functions or calls of a message must be a list")
