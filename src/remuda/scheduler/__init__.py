"""Where replicas live: what a model needs, which node takes it, what has to go, and how it gets there and
away again. Seconds matter here."""
