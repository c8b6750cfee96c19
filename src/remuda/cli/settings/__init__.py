"""Every setting of every process."""

from remuda.cli.settings.frontend import FrontendSettings
from remuda.cli.settings.shared import CommonSettings
from remuda.cli.settings.worker import WorkerSettings


class UpSettings(FrontendSettings, WorkerSettings):
    """A frontend and a worker on one machine."""


__all__ = ["CommonSettings", "FrontendSettings", "UpSettings", "WorkerSettings"]
