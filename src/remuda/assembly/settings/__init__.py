"""Every setting of every process."""

from typing import Annotated

from remuda.assembly.settings import forms
from remuda.assembly.settings.frontend import FrontendSettings
from remuda.assembly.settings.shared import CommonSettings
from remuda.assembly.settings.worker import WorkerSettings
from remuda.core.settings import Setting


class UpSettings(FrontendSettings, WorkerSettings):
    """A frontend and a worker on one machine."""

    starter: Annotated[
        bool,
        Setting("Install a small model with the first start of a fresh data folder.", forms.FLAG),
    ] = True


__all__ = ["CommonSettings", "FrontendSettings", "UpSettings", "WorkerSettings"]
