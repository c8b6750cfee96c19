"""Models that can be installed by name, as admins see them. Ours."""

from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, Many, Message
from remuda.wire.serving import ModelFileView


class GalleryModelView(Message):
    """One entry of a model gallery."""

    id: str  # `gallery@name`: this entry alone.
    name: str
    gallery: str
    aliases: Annotated[Many[str], OMIT_EMPTY] = ()
    description: str = ""
    license: str = ""
    tags: Many[str] = ()
    urls: Many[str] = ()
    backend: Annotated[str, OMIT_EMPTY] = ""
    source: Annotated[str, OMIT_EMPTY] = ""  # Where the whole model is.
    quantisation: Annotated[str, OMIT_EMPTY] = ""  # The one that the bare name means.
    variants: Annotated[Many[str], OMIT_EMPTY] = ()
    installed: bool = False  # There is a model of this name, however it came there.
    # Of one that is asked for alone, where it has no source: what it would be configured with.
    config: Annotated[str, OMIT_EMPTY] = ""
    files: Annotated[Many[ModelFileView], OMIT_EMPTY] = ()
    problem: Annotated[str, OMIT_EMPTY] = ""  # Why it is not known.


class GalleryTrouble(Message):
    """A gallery that could not be read just now."""

    gallery: str
    reason: str


class GalleryModels(Message):
    models: Many[GalleryModelView] = ()
    total: int = 0  # How many there are, of which `models` may be the first.
    unread: Annotated[Many[GalleryTrouble], OMIT_EMPTY] = ()
