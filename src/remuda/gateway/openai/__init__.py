"""OpenAI's inference API. Raw ASGI: what the general layers do for other routes is done here, from memory."""
