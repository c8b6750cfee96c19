"""Why a request is not answered by any replica."""

from remuda.core.errors import NoCapacity, NotFound, PeerFailed, Unavailable
from remuda.router.ports import LoadStatus


class ModelUnknown(NotFound):
    code = "model_not_found"
    param = "model"


class ModelLoading(Unavailable):
    """It is on its way, and the wait was over first."""

    code = "model_loading"

    def __init__(self, message: str, status: LoadStatus, retry_after_s: int) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ModelLoadFailed(PeerFailed):
    """It was tried, and this is why it does not run."""

    code = "model_load_failed"
    http_status = 503


class ModelUnloaded(Unavailable):
    """Somebody did not want it while others waited for it. Whoever asks again has it loaded."""

    code = "model_unloaded"
    retry_after_s = 5


class BackendMissing(NoCapacity):
    """No node has the model's backend, and no gallery knows it."""

    code = "backend_missing"


class Overloaded(Unavailable):
    """As many wait as may wait."""

    code = "overloaded"
    http_status = 429
    retry_after_s = 5
