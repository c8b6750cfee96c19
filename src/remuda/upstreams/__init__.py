"""Replicas as the frontend reaches them: gRPC backends and servers that speak OpenAI's HTTP, behind one
interface (inference.model.Upstream)."""
