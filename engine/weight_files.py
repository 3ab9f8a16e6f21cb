"""Choose the weight files of a model folder: safetensors, or one of its ONNX files."""

import platform
from collections.abc import Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from .config import Precision
from .descriptions import Description, file_size, list_names, read_description, stays_inside
from .errors import BadArtifactError, NotFoundError, SemanticError, UnsupportedError
from .onnx_file import OnnxFile, inspect_onnx
from .sentence_transformers import PICKLE_REMEDY
from .weights import INDEX_FILE, SINGLE_FILE

LAYOUT = f"config.json, tokenizer.json and {SINGLE_FILE} or an ONNX file"
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")
_STORED = (SINGLE_FILE, INDEX_FILE)
_DEFAULT_ONNX = "model.onnx"
_FOREIGN_NAMES = {"x86_64": "arm64", "aarch64": "avx"}  # int8 files tuned for other processors
_MOST_LISTED = 8
_MOST_INSPECTED = 64  # each of them is read whole
_ONNX_DTYPES = {
    Precision.FP32: "fp32",
    Precision.FP16: "fp16",
    Precision.BF16: "bf16",
    Precision.INT8: "int8",
}
_ONNX_NAMES = {  # by convention of the exporters, best first
    Precision.FP32: (_DEFAULT_ONNX,),
    Precision.FP16: ("model_fp16.onnx",),
    Precision.BF16: ("model_bf16.onnx",),
    Precision.INT8: (
        "model_int8.onnx",
        "model_quantized.onnx",
        "model_uint8.onnx",
        "model_qint8*.onnx",
        "model_quint8*.onnx",
    ),
}


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight file that was chosen, and all files that belong to it."""

    source: Literal["safetensors", "onnx"]
    path: Path
    onnx: OnnxFile | None
    files: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def choose_weights(
    folder: Path, config: Description, family: str, families: Collection[str], precision: Precision
) -> WeightFiles:
    """Choose safetensors where a graph can be built from them, else an ONNX file.

    INT8 and FP16 prefer a ready ONNX file of that precision to building.
    """
    stored = next((name for name in _STORED if file_size(folder / name) is not None), None)
    buildable = stored is not None and family in families
    if stored is None or not buildable or precision not in (Precision.AUTO, Precision.FP32):
        names = _onnx_names(folder)
        if names and precision is Precision.AUTO:
            return _default_onnx(folder, names)
        if names:
            file, found = _find_onnx(folder, names, precision)
            if file is not None:
                return _onnx_weights(file)
            if not buildable:
                raise UnsupportedError(
                    f"{folder} has no ONNX file of precision {_ONNX_DTYPES[precision]}; it has "
                    f"{found}; ask for one of these, or for none"
                )
    if stored is not None and buildable:
        return WeightFiles(
            "safetensors", folder / stored, None, _safetensors_files(folder / stored)
        )
    if stored is not None and family:
        raise UnsupportedError(
            f"{folder}: model_type {family!r} cannot be built from {stored}; known are "
            f"{', '.join(sorted(families))}; for others put an ONNX file there"
        )
    if stored is not None:
        raise BadArtifactError(f"{config.path}: 'model_type' is missing; {stored} needs it")
    names = list_names(folder)
    if pickles := [name for name in names if any(fnmatchcase(name, kind) for kind in _PICKLES)]:
        raise BadArtifactError(
            f"{folder} has its weights only as a pickle ({pickles[0]}), which can run code; load "
            f"the model and {PICKLE_REMEDY}"
        )
    raise NotFoundError(
        f"{folder} has no weights; looked for {', '.join(_STORED)}, *.onnx and onnx/*.onnx"
    )


def has_weights(folder: Path) -> bool:
    """Tell whether a folder has weights of a whole model."""
    stored = any(file_size(folder / name) is not None for name in _STORED)
    return stored or bool(_onnx_names(folder))


def _safetensors_files(path: Path) -> tuple[Path, ...]:
    """Return the weight file, or the index and the shards that it names."""
    if path.name == SINGLE_FILE:
        return (path,)
    index = read_description(path)
    shards = {} if index is None else index.get("weight_map", dict) or {}
    names = [name for name in shards.values() if isinstance(name, str) and stays_inside(name)]
    if not names or len(names) < len(shards):
        raise BadArtifactError(
            f"{path}: 'weight_map' must map weights to files beside it; fetch it again"
        )
    files = [path.parent / name for name in sorted(set(names))]
    for file in files:
        if file_size(file) is None:
            raise NotFoundError(f"{file} is missing, {path.name} lists it; fetch it too")
    return (path, *files)


def _onnx_names(folder: Path) -> list[str]:
    """List the ONNX files of a folder and of its ``onnx/``; those for other processors last."""
    names = [name for name in list_names(folder) if name.endswith(".onnx")]
    names += [f"onnx/{name}" for name in list_names(folder / "onnx") if name.endswith(".onnx")]
    foreign = _FOREIGN_NAMES.get(platform.machine())
    return sorted(names, key=lambda name: foreign is not None and foreign in name)


def _default_onnx(folder: Path, names: list[str]) -> WeightFiles:
    """Take the only ONNX file, else the one with the default name."""
    defaults = [name for name in names if PurePosixPath(name).name == _DEFAULT_ONNX]
    if len(names) > 1 and not defaults:
        raise BadArtifactError(
            f"{folder} has several ONNX files and none is {_DEFAULT_ONNX}: "
            f"{', '.join(names[:_MOST_LISTED])}{'' if len(names) <= _MOST_LISTED else ', …'}; ask "
            "for a precision or leave one"
        )
    weights = _onnx_weights(inspect_onnx(folder / (defaults or names)[0]))
    if len(defaults) > 1:
        return replace(weights, warnings=(f"{defaults[0]} is used, {defaults[1]} is not",))
    return weights


def _find_onnx(folder: Path, names: list[str], precision: Precision) -> tuple[OnnxFile | None, str]:
    """Return the ONNX file whose graph really has ``precision``, and what all files have.

    Files that the exporters name so are looked at first; among others only one may fit.
    """
    wanted = _ONNX_DTYPES[precision]
    named = [
        name
        for pattern in _ONNX_NAMES[precision]
        for name in names
        if fnmatchcase(PurePosixPath(name).name, pattern)
    ]
    if len(names) > _MOST_INSPECTED:
        raise BadArtifactError(
            f"{folder} has {len(names)} ONNX files, at most {_MOST_INSPECTED} are looked at for a "
            "precision; leave the one of that precision"
        )
    found: dict[str, str] = {}
    for name in named:
        file = inspect_onnx(folder / name)
        if file.dtype == wanted:
            return file, ""
        found[name] = file.dtype
    fits: list[OnnxFile] = []
    for name in (name for name in names if name not in named):
        try:
            file = inspect_onnx(folder / name)
        except SemanticError:  # not asked for by name, so it need not be usable
            found[name] = "not usable"
            continue
        found[name] = file.dtype
        fits += [file] if file.dtype == wanted else []
    described = ", ".join(f"{name} ({dtype or 'no weights'})" for name, dtype in found.items())
    if len(fits) > 1:
        raise BadArtifactError(f"{folder} has several files of {wanted}: {described}; leave one")
    return (fits[0] if fits else None), described


def _onnx_weights(file: OnnxFile) -> WeightFiles:
    """Return an ONNX file with its external data."""
    external = (file.path.parent / location for location, _ in file.external)
    return WeightFiles("onnx", file.path, file, (file.path, *external))
