"""What echo has done so far, for GetMetrics: tests see there that a cancelled stream really ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Calls that generate, by how they ended; tokens of all of them."""

    active: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    prompt_tokens: int = 0

    @contextmanager
    def counted(self, prompt_tokens: int) -> Iterator[None]:
        self.active += 1
        self.prompt_tokens += prompt_tokens
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):  # The latter: it left while a token was on its way.
            self.cancelled += 1
            raise
        except BaseException:
            self.failed += 1
            raise
        else:
            self.finished += 1
        finally:
            self.active -= 1
