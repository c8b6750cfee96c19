"""How fast models were measured to be, as admins report and read it. Ours."""

from typing import Annotated

from pydantic import Field

from remuda.wire.codec import OMIT_EMPTY, Count, Many, Message, Number, Timestamp, Uint64

RESULTS_MAX = 1000  # Reported at once.
_Positive = Annotated[Number, Field(ge=0)]


class MeasuredSpeed(Message):
    """What came of so many streams at once."""

    node: Annotated[str, OMIT_EMPTY] = ""  # Its name; empty: of whichever node was chosen for each request.
    streams: Annotated[Count, Field(ge=1)]
    requests: Annotated[Count, Field(ge=1)]
    failed: Count = 0
    prompt_tokens: Uint64 = 0  # Of one request, on average.
    completion_tokens: Uint64 = 0
    first_token_ms: _Positive = 0.0  # The median.
    first_token_p95_ms: _Positive = 0.0
    tokens_per_s: _Positive = 0.0  # Of all streams together.
    prompt_tokens_per_s: _Positive = 0.0  # 0: not measured.


class BenchmarkReport(Message):
    """Admin to frontend: what was measured of a model, to be kept."""

    model: str
    results: Annotated[Many[MeasuredSpeed], Field(min_length=1, max_length=RESULTS_MAX)]


class BenchmarkView(MeasuredSpeed):
    """One that is kept."""

    id: Uint64
    model: str
    revision: str = ""  # Of the model's configuration, by which it was measured.
    backend: str = ""
    at: Timestamp


class BenchmarkViews(Message):
    """The newest first."""

    benchmarks: Many[BenchmarkView] = ()
