"""Replicas that speak backend.proto: requests become its calls, its replies become typed answers."""
