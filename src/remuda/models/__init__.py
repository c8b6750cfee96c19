"""Models as people configure them: the YAML of the contract, what a GGUF file says of itself, and what both
come to for a backend. Knows nothing of nodes or replicas."""
