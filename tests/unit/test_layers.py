"""The layers of the package: what may import what, and one status for each error."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libsemantic.engine import errors
from libsemantic.engine.errors import SemanticError, Status

ROOT = Path(__file__).parents[2]
ENGINE, FFI = ROOT / "engine", ROOT / "ffi"
# Modules that only loading a model needs, and those that are allowed to use them.
LOADING = {
    "adaptation",
    "adapter_weights",
    "adapters",
    "artifacts",
    "descriptions",
    "graphs",
    "labels",
    "onnx_file",
    "onnx_outputs",
    "matryoshka",
    "sentence_transformers",
    "sources",
    "weight_files",
    "weights",
}
LOADERS = LOADING | {
    "bases",
    "config_files",
    "demands",
    "dense",
    "info",
    "load_checks",
    "model",
    "opening",
}
FOREIGN = {"torch", "transformers", "sentence_transformers", "optimum", "tensorflow", "jax"}
ALLOWED = {"cffi", "libsemantic", "numpy", "onnx", "onnxruntime", "safetensors", "tokenizers"}


def modules(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert len(found) > 3
    return found


def imports(path: Path, *, at_start: bool = False) -> Iterator[str]:
    """Yield the absolute name of each module that a module imports, wherever it does.

    With ``at_start`` only those that importing the module imports.
    """
    package = ("libsemantic", *path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in _nodes(ast.parse(path.read_text()), at_start):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = [*package[: len(package) - node.level + 1]] if node.level else []
            base = ".".join(parts + ([node.module] if node.module else []))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _nodes(tree: ast.AST, at_start: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        types_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (at_start and (inside or types_only)):
            yield from _nodes(node, at_start)


def own(path: Path) -> str:
    """Return the top module of the engine that a file belongs to."""
    return path.relative_to(ENGINE).parts[0].removesuffix(".py")


def test_the_parser_sees_every_kind_of_import() -> None:
    assert "libsemantic.engine.graphs" in set(imports(ENGINE / "model.py"))
    assert "libsemantic.engine.graphs" not in set(imports(ENGINE / "model.py", at_start=True))
    assert "libsemantic.engine.graphs" in set(imports(ENGINE / "opening.py"))
    assert "libsemantic.engine.weights" in set(imports(ENGINE / "graphs" / "builder.py"))
    assert "libsemantic.engine.tasks" in set(imports(ENGINE / "registry.py"))
    assert "onnx" in set(imports(ENGINE / "onnx_file.py"))
    assert "onnx" not in set(imports(ENGINE / "onnx_file.py", at_start=True))


def test_the_engine_knows_nothing_of_the_boundary() -> None:
    for path in modules(ENGINE):
        for name in imports(path):
            assert not name.startswith(("libsemantic.ffi", "cffi", "_cffi")), path
            # One asks the loader why a provider's library does not load, the other the C heap to
            # give back what is free.
            assert name != "ctypes" or own(path) in ("devices", "memory"), path


def test_only_loading_code_uses_what_reads_folders() -> None:
    for path in modules(ENGINE):
        for name in imports(path):
            parts = name.split(".")
            if parts[:2] == ["libsemantic", "engine"] and parts[2:3] and parts[2] in LOADING:
                assert own(path) in LOADERS, f"{path} imports {name}"


def test_the_boundary_leaves_loading_to_the_registry() -> None:
    hidden = tuple(f"libsemantic.engine.{module}" for module in (*LOADING, "model", "batching"))
    for path in modules(FFI):
        for name in imports(path):
            assert not name.startswith(hidden), f"{path} imports {name}"


def test_graphs_and_onnx_are_imported_only_when_a_model_is_built() -> None:
    for path in modules(ENGINE):
        if own(path) == "graphs":
            continue
        for name in imports(path, at_start=True):
            assert name.split(".")[0] != "onnx", f"{path} imports {name} at start"
            assert not name.startswith("libsemantic.engine.graphs"), path


def test_few_modules_import_onnxruntime() -> None:
    """It must see the variable that keeps ONNX Runtime from writing and sending."""
    for path in modules(ENGINE):
        allowed = own(path) in ("devices", "session")
        assert allowed or "onnxruntime" not in set(imports(path)), path
    lines = (ENGINE / "__init__.py").read_text().splitlines()
    variable = lines.index('os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")')
    assert variable < next(at for at, line in enumerate(lines) if line.startswith("from "))


@pytest.mark.parametrize("folder", [ENGINE, FFI], ids=["engine", "ffi"])
def test_nothing_foreign_is_imported(folder: Path) -> None:
    for path in modules(folder):
        for name in imports(path):
            top = name.split(".")[0]
            assert top not in FOREIGN, f"{path} imports {name}"
            builds = path.name == "generate.py" and top == "pycparser"
            assert top in ALLOWED | sys.stdlib_module_names or builds, f"{path} imports {name}"


def classes(root: type[SemanticError]) -> Iterator[type[SemanticError]]:
    for each in root.__subclasses__():
        yield each
        yield from classes(each)


def test_each_error_has_one_status_and_each_status_an_error() -> None:
    found = [each for each in classes(SemanticError) if each.__module__ == errors.__name__]
    statuses = [each.status for each in found]
    assert len(set(statuses)) == len(statuses)
    assert set(statuses) == set(Status) - {Status.OK, Status.PARTIAL}
    for each in found:
        assert "status" in vars(each), f"{each.__name__} inherits its status"
        name = "".join(f"_{c}" if c.isupper() else c.upper() for c in each.__name__)
        assert name.strip("_").removesuffix("_ERROR") == each.status.name


def test_the_tree_at_the_top_of_errors_is_the_real_one() -> None:
    drawn = [
        line.split("── ")[1].split()[0]
        for line in (errors.__doc__ or "").splitlines()
        if "── " in line
    ]
    found = [each for each in classes(SemanticError) if each.__module__ == errors.__name__]
    assert drawn == [each.__name__ for each in found]
    assert drawn == [each.__name__ for each in sorted(found, key=lambda each: each.status)]
