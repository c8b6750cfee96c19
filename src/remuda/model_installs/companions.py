"""What a model's configuration wants fetched beside the files that its source has: `download_files`, and
`artifacts`, which are snapshots of repositories (contract 6.1). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import yaml

from remuda.gallery.model_configs import ComposedModel
from remuda.gallery.model_entries import GalleryFile
from remuda.models.config import ModelConfig
from remuda.models.reading import read_model
from remuda.models.source_refs import HubModel
from remuda.models.wanted_sources import artifact_folder, artifact_source

COMPANION: Final = "companion"  # The role of what is in an artifact.


@dataclass(frozen=True, slots=True)
class WantedSnapshot:
    """Files of a repository, and the folder below the model's own in which they are."""

    source: HubModel
    folder: str
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, path: str) -> bool:
        """As the hub's own clients read such patterns: a star also stands for slashes."""
        allowed = not self.allow or any(_matches(path, pattern) for pattern in self.allow)
        return allowed and not any(_matches(path, pattern) for pattern in self.ignore)


def config_of(overlay: str) -> ModelConfig:
    """What is laid over a model's configuration, as one. Invalid for keys that no model could have."""
    if not overlay.strip():
        return ModelConfig()
    keys = yaml.safe_load(overlay)
    listed = keys if isinstance(keys, dict) else {}
    wanted = {key: listed[key] for key in ("download_files", "artifacts") if key in listed}
    return read_model(yaml.safe_dump({"name": "m", **wanted})) if wanted else ModelConfig()


def files_and_downloads(made: ComposedModel) -> Sequence[GalleryFile]:
    """All that a gallery's entry lists, files of the entry before those of its configuration."""
    downloads = [
        GalleryFile(one.filename, one.uri, one.sha256) for one in config_of(made.config).download_files
    ]
    return list({one.filename: one for one in (*downloads, *made.files)}.values())


def main_artifact(config: str) -> str:
    """The source of a model that is nothing but an artifact; empty: it has none."""
    artifacts = config_of(config).artifacts
    return str(artifact_source(artifacts[0])) if artifacts else ""


def snapshots(config: ModelConfig, main: str) -> list[WantedSnapshot]:
    """All but the one that is the model itself, which comes from `main`."""
    wanted = [
        WantedSnapshot(
            artifact_source(one), artifact_folder(one), one.source.allow_patterns, one.source.ignore_patterns
        )
        for one in config.artifacts
    ]
    return [one for one in wanted if str(one.source) != main]


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern)
