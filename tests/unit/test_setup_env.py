"""The requirements of an environment: one build of ONNX Runtime, never two."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from libsemantic.engine.devices import RUNTIMES
from libsemantic.engine.providers import PROVIDERS

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = ROOT / "pyproject.toml"


@pytest.fixture(scope="module")
def setup_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("development", [True, False])
@pytest.mark.parametrize(
    ("provider", "package"),
    [("", "onnxruntime"), ("openvino", "onnxruntime-openvino"), ("gpu", "onnxruntime-gpu")],
)
def test_a_provider_stands_in_place_of_onnxruntime(
    setup_env: ModuleType, provider: str, package: str, development: bool
) -> None:
    found = setup_env.read_requirements(PYPROJECT, development=development, provider=provider)
    names = [requirement.partition("==")[0] for requirement in found]
    assert [name for name in names if name.startswith("onnxruntime")] == [package]
    assert {"cffi", "numpy", "onnx", "tokenizers"} <= set(names)
    assert ("pytest" in names) == development
    plain = setup_env.read_requirements(PYPROJECT, development=development)
    assert len(plain) == len(found)


def test_another_provider_is_refused(setup_env: ModuleType) -> None:
    for name in ("cuda", "dev", "OpenVINO"):
        with pytest.raises(setup_env.SetupError, match="known are gpu, openvino"):
            setup_env.read_requirements(PYPROJECT, development=False, provider=name)


def test_no_extra_lays_one_build_over_another() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert "optional-dependencies" not in project


def test_the_packages_are_those_of_the_table() -> None:
    groups = tomllib.loads(PYPROJECT.read_text())["dependency-groups"]
    pinned = {groups[name][0].partition("==")[0] for name in groups.keys() - {"dev"}}
    assert pinned | {"onnxruntime"} == {row.package for row in PROVIDERS.values()}
    assert pinned < set(RUNTIMES)
