"""Chats of other APIs as OpenAI's JSON. Pure."""

import msgspec

from remuda.inference.requests import ChatRequest, openai_json


def chat_json(chat: ChatRequest) -> bytes:
    """Whether to think is a matter of chat templates, as llama.cpp's server and vLLM call it."""
    written = openai_json(msgspec.structs.replace(chat, metadata=None))
    if not chat.metadata:
        return written
    thinks = chat.metadata["enable_thinking"].encode()
    return written[:-1] + b',"chat_template_kwargs":{"enable_thinking":%b}}' % thinks
