"""Repository names of the Hugging Face hub, found in the local cache; nothing is downloaded."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from libsemantic.engine.errors import InvalidArgumentError, NotFoundError

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def local_folder(path: str) -> str:
    """Return the folder that a path or a repository name stands for.

    A name is looked up as huggingface_hub lays out its cache: the revision that refs/main names,
    in snapshots. Raise InvalidArgumentError for an empty path, NotFoundError for a name that is
    neither a folder nor in the cache. Any other path is returned as it is.
    """
    if not path:
        raise InvalidArgumentError("the path is empty; pass the folder of a model")
    if os.path.lexists(path) or _REPOSITORY.fullmatch(path) is None:
        return path
    for cache in _caches():
        repository = cache / f"models--{path.replace('/', '--')}"
        try:
            revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
        snapshot = repository / "snapshots" / revision
        if re.fullmatch(r"[0-9A-Za-z._-]+", revision) and snapshot.is_dir():
            return str(snapshot)
    raise NotFoundError(
        f"{path!r} is no folder and not in the local Hugging Face cache, and nothing is "
        "downloaded; fetch the model and pass its folder"
    )


def _caches() -> Iterator[Path]:
    """Yield the folders that huggingface_hub would use, the most particular first."""
    if named := os.environ.get("HF_HUB_CACHE"):
        yield Path(named)
    if home := os.environ.get("HF_HOME"):
        yield Path(home) / "hub"
    if user := os.environ.get("HOME"):
        yield Path(user) / ".cache" / "huggingface" / "hub"
