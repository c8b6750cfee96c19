"""Replicas that speak OpenAI's HTTP: requests and answers are relayed as bytes, with the model's name
exchanged where the server knows it by another."""
