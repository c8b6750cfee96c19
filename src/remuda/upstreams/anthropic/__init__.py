"""Servers that speak Anthropic's API, asked for answers to OpenAI's chats."""
