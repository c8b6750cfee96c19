"""OpenAI's Responses API: conversations as items, kept for whoever goes on with them."""
