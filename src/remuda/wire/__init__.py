"""What crosses a process boundary: LocalAI's contract plus our additive fields. Data only."""
