"""The kernel's list of graphics cards, shared by the detectors that read sysfs."""

import re

from remuda.worker.hardware.host import Host, read_line

_DRM = "/sys/class/drm"
_CARD = re.compile(r"card[0-9]+")  # Not its connectors (card0-HDMI-A-1) nor render nodes.


def cards(host: Host, pci_vendor: str) -> tuple[str, ...]:
    """The folders of this vendor's cards."""
    folders = (f"{_DRM}/{name}" for name in host.list_dir(_DRM) if _CARD.fullmatch(name))
    return tuple(card for card in folders if read_line(host, f"{card}/device/vendor") == pci_vendor)


def name(host: Host, card: str, maker: str) -> str:
    """The product's name where the card tells it, else the maker and the PCI device id."""
    told = read_line(host, f"{card}/device/product_name")
    return told or f"{maker} GPU {read_line(host, f'{card}/device/device')}".rstrip()
