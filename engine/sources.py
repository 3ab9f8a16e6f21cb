"""Find what a folder is made of: a model, or an adapter and the base that it changes."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from .adapters import ADAPTER_CONFIG, Adapter, adapt_config, is_adapter, read_adapter
from .descriptions import Description, file_size, list_names, read_description
from .errors import InvalidArgumentError, NotFoundError
from .labels import has_label_file
from .sentence_transformers import (
    Module,
    has_pooling,
    read_modules,
    read_transformer_options,
    transformer_folder,
)
from .weight_files import LAYOUT, has_weights


@dataclass(frozen=True, slots=True)
class Sources:
    """Where each part of a description comes from: one folder, or an adapter and its base.

    ``modules`` belong to ``head_folder``; ``own`` is the configuration whose labels count.
    """

    model_folder: Path
    config: Description
    tokenizer_folder: Path
    options_folder: Path
    head_folder: Path
    modules: tuple[Module, ...] | None
    label_folder: Path
    own: Description
    adapter: Adapter | None


def resolve_folder(path: str) -> Path:
    """Return the real folder that ``path`` leads to."""
    try:
        folder = Path(os.path.realpath(path, strict=True)) if path else None
        str(folder).encode()
    except ValueError as error:
        raise InvalidArgumentError(
            f"the path {path!r} is no path: {error}; rename the folder"
        ) from error
    except OSError as error:
        message = f"{path!r} cannot be opened: {error.strerror}; give the folder of a model"
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise InvalidArgumentError(message) from error
        raise NotFoundError(message) from error
    if folder is None or not folder.is_dir():
        raise InvalidArgumentError(f"{path!r} is not a folder; give the one that holds {LAYOUT}")
    list_names(folder)
    return folder


def find_sources(folder: Path, base_path: str) -> Sources:
    """Find the model in a folder, or the adapter there and its base."""
    modules = read_modules(folder)
    home = transformer_folder(folder, modules)
    own = read_description(home / "config.json")
    if is_adapter(home, has_weights(home)):
        return _find_adapted(folder, home, modules, own, base_path)
    if base_path:
        raise InvalidArgumentError(
            f"base_path is set, but {folder} is no adapter folder ({ADAPTER_CONFIG}, no weights of "
            "its own); leave it empty"
        )
    if own is None:
        raise NotFoundError(f"{home} has no config.json; a model folder needs {LAYOUT}")
    return Sources(
        model_folder=home,
        config=own,
        tokenizer_folder=home,
        options_folder=home,
        head_folder=folder,
        modules=modules,
        label_folder=home,
        own=own,
        adapter=None,
    )


def _find_adapted(
    folder: Path,
    home: Path,
    modules: tuple[Module, ...] | None,
    own: Description | None,
    base_path: str,
) -> Sources:
    """Find the base of an adapter in ``home``; what the adapter's folder has itself wins."""
    adapter = read_adapter(home)
    base = _base_folder(adapter, base_path)
    base_modules = read_modules(base)
    model_folder = transformer_folder(base, base_modules)
    config = read_description(model_folder / "config.json")
    if config is None or not has_weights(model_folder):
        missing = "config.json" if config is None else "weights"
        raise NotFoundError(
            f"{model_folder}, the base of the adapter {home}, has no {missing}; a base needs "
            f"{LAYOUT}"
        )
    has_tokenizer = file_size(home / "tokenizer.json") is not None
    pooled = has_pooling(folder, modules)
    labelled = bool(adapter.saved) or has_label_file(home)
    return Sources(
        model_folder=model_folder,
        config=adapt_config(adapter, config, own),
        tokenizer_folder=home if has_tokenizer else model_folder,
        options_folder=home if read_transformer_options(home) else model_folder,
        head_folder=folder if pooled else base,
        modules=modules if pooled else base_modules,
        label_folder=home if labelled else model_folder,
        own=(own or Description(home / "config.json", {})) if labelled else config,
        adapter=adapter,
    )


def _base_folder(adapter: Adapter, base_path: str) -> Path:
    """Return the folder of an adapter's base: the one asked for, else the one recorded."""
    if base_path:
        return resolve_folder(base_path)
    home, recorded = adapter.config_path.parent, adapter.base_name
    try:
        if recorded and (home / recorded).is_dir():
            return resolve_folder(str(home / recorded))
    except (OSError, ValueError):  # a name that is no path
        pass
    raise NotFoundError(
        f"the base of the adapter {home} is not there: {adapter.config_path.name} records "
        f"'base_model_name_or_path' {recorded!r:.200}, which is no folder, and base_path is not "
        "set; pass the folder of the base as base_path"
    )
