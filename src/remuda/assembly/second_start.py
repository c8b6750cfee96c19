"""Refuses a second frontend on the same folder or port, before anything slow is imported or started. The
start itself checks both again: somebody may take them meanwhile."""

from remuda.assembly.addresses import bind_host
from remuda.assembly.settings import FrontendSettings
from remuda.core.errors import Misconfigured
from remuda.host.folder import DataFolder
from remuda.host.ports import listen, listening_process


def refuse_second_start(settings: FrontendSettings) -> None:
    """Raises Misconfigured, naming the process that has the folder or the port."""
    DataFolder(settings.data_dir).check_free_for("frontend")
    try:
        listen(bind_host(settings), settings.port).close()
    except Misconfigured as error:
        holder = listening_process(settings.port)
        if not holder:
            raise
        raise Misconfigured(f"{error.message} by {holder}", hint=f"stop it, or {error.hint}") from None
