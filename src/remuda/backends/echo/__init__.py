"""A backend that answers with what it was asked: deterministic, and failing on request."""
