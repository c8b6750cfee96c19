"""Every setting of every process."""

from remuda.assembly.settings.frontend import FrontendSettings
from remuda.assembly.settings.shared import CommonSettings
from remuda.assembly.settings.worker import WorkerSettings


class UpSettings(FrontendSettings, WorkerSettings):
    """A frontend and a worker on one machine."""


__all__ = ["CommonSettings", "FrontendSettings", "UpSettings", "WorkerSettings"]
