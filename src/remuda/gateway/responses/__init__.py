"""OpenAI's Responses API: conversations as items, kept so that clients can go on with them."""
