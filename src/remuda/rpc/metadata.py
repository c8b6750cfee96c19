"""Trailing metadata that our backends add to a call's status, beyond the contract. Data only."""

from typing import Final

PREFIX: Final = "remuda-"
ENGINE_ENDED: Final = "remuda-engine-ended"
"""An engine was ended because one of its steps took too long with the grammar of this call, or with one of
several that it worked on."""
BY_THIS_CALL: Final = "this-call"
BY_ONE_OF_SEVERAL: Final = "one-of-several"
