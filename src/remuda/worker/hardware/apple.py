"""An Apple chip's GPU, which works in the machine's RAM. How much Metal lends of it is not known here."""

from remuda.worker.hardware.cpu import architecture, model
from remuda.worker.hardware.host import Host
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings


def detect(host: Host, ram: Capacity) -> GpuFindings:
    if host.system != "darwin" or architecture(host) != "arm64":
        return GpuFindings()
    name = model(host) or "Apple GPU"
    return GpuFindings((Gpu("apple", name, ram.total, ram.available, unified=True),))
