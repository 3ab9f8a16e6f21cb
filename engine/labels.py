"""Read the names of a model's labels.

Labels come from ``config.json`` (``id2label``, else ``label2id``), else from a label file beside
it. Label files are written in several styles, all read here: a table from index to name or from
name to index, alone or under a key such as ``id_to_label``, ``label_to_idx``, ``label2id``,
``idx_to_category`` or ``label_mapping``, or a plain list. Names are never invented.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from .descriptions import Description, list_names, read_json
from .errors import BadArtifactError, SemanticError

_LABEL_FILES = ("*mapping*.json", "labels.json")
_TABLE_KEYS = (  # key of a table in a label file; does the table lead from index to name?
    (r"(?:id|idx)(?:2|_to_)\w+", True),
    (r"\w+(?:2|_to_)(?:id|idx)", False),
    (r"label_mapping", None),
)
_MAX_LABEL_FILES = 32
_MAX_UNNAMED = 65_536
_COUNTS = ("num_labels", "_num_labels")
_REMEDY = "add id2label to config.json with one name for each output of the head"


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of a head's outputs in index order, and the file and key they come from."""

    names: tuple[str, ...]
    file: str
    key: str = ""

    @property
    def source(self) -> str:
        """Return file and key for a message."""
        return f"{self.file} {self.key}".rstrip()

    def require_width(self, width: int, where: str) -> None:
        """Raise BadArtifactError unless the head described by ``where`` has one output a name."""
        if width != len(self.names):
            raise BadArtifactError(
                f"the head has {width} outputs ({where}), the labels are {len(self.names)} "
                f"({self.source}); {_REMEDY}"
            )


def read_labels(
    folder: Path, config: Description, *, without_config: bool = False, unnamed: int = 0
) -> tuple[Labels, tuple[str, ...]]:
    """Return the labels of a classifier and one warning for each thing that contradicts them.

    ``config`` wins over label files of the folder, ``id2label`` over ``label2id``. An adapter is
    ``without_config``: for it labels in a file are no surprise. Where nothing names the labels
    they are ``LABEL_0`` and so on, as many as ``config`` counts, else ``unnamed``; 0 refuses
    them. Unless it is 0, indices that a table of ``config`` leaves out are named so too. Raises
    BadArtifactError then, and where what must name the labels is wrong.
    """
    labels, warnings = _config_labels(config, fills_gaps=unnamed > 0)
    paths = [folder / name for name in list_names(folder) if _is_label_file(name)]
    if len(paths) > _MAX_LABEL_FILES:
        raise BadArtifactError(
            f"{folder} has {len(paths)} files whose names say that they map labels, at most "
            f"{_MAX_LABEL_FILES} are read; leave the one of this model"
        )
    for path in paths:
        try:
            names = _file_names(read_json(path))
        except (SemanticError, ValueError) as error:
            warnings.append(f"label file {path.name} is ignored: {error}")
            continue
        if labels is None:
            labels = Labels(names, path.name)
            if not without_config:
                warnings.append(f"the labels come from {path.name}; config.json has none")
        elif names != labels.names:
            difference = _difference(names, labels.names)
            if labels.file == config.path.name:
                warnings.append(f"{path.name} contradicts {labels.source}: {difference}")
                continue
            raise BadArtifactError(
                f"{folder}: {path.name} contradicts {labels.source}: {difference}; {_REMEDY}"
            )
    if labels is None and unnamed:
        counted = (config.positive(key) for key in _COUNTS)
        count = next((number for number in counted if number is not None), unnamed)
        if count > _MAX_UNNAMED:
            raise BadArtifactError(
                f"{config.path}: {count} labels without names; at most {_MAX_UNNAMED} are given "
                f"some, {_REMEDY}"
            )
        labels = Labels(tuple(f"LABEL_{index}" for index in range(count)), config.path.name)
        warnings.append(f"nothing names the labels; they are LABEL_0 to LABEL_{count - 1}")
    if labels is None:
        found = f" ({'; '.join(warnings)})" if warnings else ""
        raise BadArtifactError(
            f"{config.path} has neither id2label nor label2id, and no label file beside it names "
            f"the labels{found}; {_REMEDY}"
        )
    for key in _COUNTS:
        if (said := config.get(key, int)) not in (None, len(labels.names)):
            raise BadArtifactError(
                f"{config.path}: {key!r} is {said}, {labels.source} has {len(labels.names)} "
                f"names; {_REMEDY}"
            )
    return labels, tuple(warnings)


def has_label_file(folder: Path) -> bool:
    """Tell whether a folder has a file that may hold label names."""
    return any(_is_label_file(name) for name in list_names(folder))


def _config_labels(config: Description, *, fills_gaps: bool) -> tuple[Labels | None, list[str]]:
    """Read ``id2label``, else ``label2id``; an empty table counts as absent."""
    labels: Labels | None = None
    warnings: list[str] = []
    for key, by_index in (("id2label", True), ("label2id", False)):
        table = config.values.get(key)
        if table is None or table == {}:
            continue
        try:
            names = _names(table, by_index, fills_gaps=fills_gaps)
        except ValueError as error:
            if labels is not None:
                return labels, [*warnings, f"config.json {key} is ignored: it {error}"]
            raise BadArtifactError(f"{config.path}: {key!r} {error}; {_REMEDY}") from error
        if labels is None:
            labels = Labels(names, config.path.name, key)
            left_out = len(names) - (len(table) if isinstance(table, Mapping | list) else 0)
            if left_out:
                warnings.append(
                    f"config.json {key} leaves out {left_out} of {len(names)} labels; they are "
                    "named LABEL_ and their index"
                )
        elif names != labels.names:
            difference = _difference(names, labels.names)
            warnings.append(f"config.json {key} contradicts id2label: {difference}")
    return labels, warnings


def _is_label_file(name: str) -> bool:
    """Tell whether a file of this name may hold label names."""
    return any(fnmatchcase(name, pattern) for pattern in _LABEL_FILES)


def _file_names(content: object) -> tuple[str, ...]:
    """Return the names that a parsed label file holds; ValueError says why there are none."""
    tables: list[tuple[str, bool | None, object]] = []
    for key, table in content.items() if isinstance(content, dict) else ():
        for pattern, by_index in _TABLE_KEYS:
            if isinstance(table, dict | list) and re.fullmatch(pattern, key):
                tables.append((f"{key} ", by_index, table))
                break
    tables = tables or [("it ", None, content)]
    found: tuple[str, ...] = ()
    for key, by_index, table in tables:
        try:
            names = _names(table, by_index)
        except ValueError as error:
            raise ValueError(f"{key}{error}") from error
        if found and names != found:
            raise ValueError(f"it contradicts itself: {_difference(names, found)}")
        found = names
    return found


def _names(table: object, by_index: bool | None, *, fills_gaps: bool = False) -> tuple[str, ...]:
    """Return names in index order from a list or a table; ``by_index`` None: either direction.

    Raises ValueError, worded to follow the name of the table, unless the indices are exactly
    0 … n−1, which ``fills_gaps`` makes them, and the names are texts, neither empty nor repeated.
    """
    pairs: list[tuple[object, object]]
    if isinstance(table, list):
        pairs = list(enumerate(table))
    elif not isinstance(table, Mapping):
        raise ValueError("is neither a table of labels nor a list")
    elif by_index or (by_index is None and not all(type(v) is int for v in table.values())):
        pairs = [(_index(key), name) for key, name in table.items()]
    else:
        pairs = [(index, name) for name, index in table.items()]
    if not pairs:
        raise ValueError("is empty")
    names: dict[object, str] = {}
    for index, name in pairs:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"gives index {index} the name {_shown(name)}, which is no text")
        if type(index) is not int:
            raise ValueError(f"gives {_shown(name)} the index {_shown(index)}, which is no number")
        if index in names:
            raise ValueError(f"has index {index} twice")
        names[index] = name
    count = max((index for index in names if isinstance(index, int)), default=-1) + 1
    if fills_gaps and count <= _MAX_UNNAMED:
        names = {index: f"LABEL_{index}" for index in range(count)} | names
    if missing := [index for index in range(len(names)) if index not in names]:
        raise ValueError(f"has {len(names)} names but none for index {missing[0]}")
    ordered = tuple(names[index] for index in range(len(names)))
    first: dict[str, int] = {}
    for index, name in enumerate(ordered):
        if first.setdefault(name, index) != index:
            raise ValueError(f"has {_shown(name)} twice, at {first[name]} and {index}")
    return ordered


def _index(key: object) -> int:
    """Return the index that a JSON key spells; ValueError for any other key."""
    if isinstance(key, str) and re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
        return int(key)
    raise ValueError(f"has the key {_shown(key)}, which is no index")


def _difference(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    """Describe the first difference between two lists of names."""
    for index, (name, other) in enumerate(zip(names, others, strict=False)):
        if name != other:
            return f"index {index} is {_shown(name)}, not {_shown(other)}"
    return f"{len(names)} labels, not {len(others)}"


def _shown(value: object) -> str:
    """Return a value of a file as one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
