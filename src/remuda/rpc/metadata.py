"""What our backends get and give beyond the contract: in the metadata of a request, and in trailing
metadata that they add to a call's status. Data only."""

from typing import Final

PREFIX: Final = "remuda-"
ADD_SPECIAL_TOKENS: Final = "remuda-add-special-tokens"
"""In the metadata of a request for tokens, "true": with those that the model's prompts begin and end with."""
STOP_SEQUENCE: Final = "remuda-stop-sequence"
"""With the status of an answer: the stop sequence at which it ended, as JSON. Left out where it ended by
itself."""
CACHED_TOKENS: Final = "remuda-cached-tokens"
"""With the status of an answer: how many tokens of the prompt were known from earlier ones, as a number."""
ENGINE_ENDED: Final = "remuda-engine-ended"
"""An engine was ended because one of its steps took too long with the grammar of this call, or with one of
several that it worked on."""
BY_THIS_CALL: Final = "this-call"
BY_ONE_OF_SEVERAL: Final = "one-of-several"
