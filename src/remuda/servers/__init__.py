"""Servers that run without us: an Ollama on the NAS, an LM Studio, a cloud provider. Their models are routed
to like our own."""
