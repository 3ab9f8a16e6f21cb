"""The safetensors reader: exact places of good tensors, a typed error for every damage."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from libsemantic.engine.errors import (
    BadArtifactError,
    NotFoundError,
    SemanticError,
    UnsupportedError,
)
from libsemantic.engine.weights import Tensor, load_array, load_rows, read_weights

Entry = dict[str, object]


def entry(dtype: str, shape: list[int], begin: int, end: int) -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


GOOD_HEADER = {"b": entry("I64", [2], 24, 40), "a": entry("F32", [2, 3], 0, 24)}
GOOD = pack(GOOD_HEADER, bytes(range(40)))
START = 8 + len(json.dumps(GOOD_HEADER))


def put(folder: Path, content: bytes, name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def put_shards(folder: Path, shards: dict[str, list[str]], weight_map: object) -> Path:
    for shard, names in shards.items():
        header = {n: entry("U8", [2], 2 * i, 2 * i + 2) for i, n in enumerate(names)}
        put(folder, pack(header, b"\1\2" * len(names)), shard)
    index = {"metadata": {"total_size": 2}, "weight_map": weight_map}
    return put(folder, json.dumps(index).encode(), "model.safetensors.index.json")


def error_of(kind: type[SemanticError], folder: Path) -> str:
    with pytest.raises(kind) as caught:
        read_weights(folder)
    assert type(caught.value) is kind
    assert "\n" not in caught.value.message
    return caught.value.message


def test_places_are_absolute_and_paths_real(tmp_path: Path) -> None:
    folder = put(tmp_path, GOOD)
    path = Path(os.path.realpath(folder / "model.safetensors"))
    assert read_weights(folder) == {
        "b": Tensor("b", "I64", (2,), path, START + 24, 16),
        "a": Tensor("a", "F32", (2, 3), path, START, 24),
    }


def test_metadata_padding_scalars_and_empty_tensors_are_accepted(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "scalar": entry("F16", [], 0, 2),
        "empty": entry("F32", [0, 7], 2, 2),
        "half_bytes": entry("F4", [4], 2, 4),
    }
    text = json.dumps(header).encode() + b"   "
    weights = read_weights(put(tmp_path, pack(text, b"abcd")))
    places = {name: (t.shape, t.offset - 8 - len(text), t.nbytes) for name, t in weights.items()}
    assert places == {
        "scalar": ((), 0, 2),
        "empty": ((0, 7), 2, 0),
        "half_bytes": ((4,), 2, 2),
    }


def test_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    arrays = {f"w{n}": random.standard_normal((n, 3)).astype(np.float32) for n in range(1, 6)}
    save_file(arrays, tmp_path / "model.safetensors", {"format": "np"})
    weights = read_weights(tmp_path)
    assert weights.keys() == arrays.keys()
    for name, expected in load_file(tmp_path / "model.safetensors").items():
        assert np.array_equal(load_array(weights[name]), expected)


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("F32", np.array([0x3F800000, 0xC0200000, 0x7F800000, 1], "<u4"), [1, -2.5, np.inf, 1e-45]),
        ("F16", np.array([0x3C00, 0xC100, 0x7C00, 1], "<u2"), [1, -2.5, np.inf, 2**-24]),
        ("BF16", np.array([0x3F80, 0xC020, 0x7F80, 1], "<u2"), [1, -2.5, np.inf, 2**-133]),
    ],
)
def test_load_array_gives_the_stored_values(
    tmp_path: Path, dtype: str, bits: np.ndarray, expected: list[float]
) -> None:
    data = bits.tobytes()
    header = {"x": entry("U8", [3], 0, 3), "y": entry(dtype, [2, 2], 3, 3 + len(data))}
    array = load_array(read_weights(put(tmp_path, pack(header, b"\xff" * 3 + data)))["y"])
    assert array.dtype == np.float32
    assert np.array_equal(array, np.array(expected, np.float32).reshape(2, 2))


def test_load_rows_gives_a_part_of_load_array(tmp_path: Path) -> None:
    array = np.random.default_rng(1).standard_normal((7, 3, 2)).astype(np.float32)
    save_file({"a": array[:2], "x": array}, tmp_path / "model.safetensors")
    tensor = read_weights(tmp_path)["x"]
    for first, end in ((0, 7), (0, 1), (2, 5), (6, 7)):
        assert np.array_equal(load_rows(tensor, first, end), array[first:end])


def test_load_array_refuses_other_dtypes_and_files_that_changed(tmp_path: Path) -> None:
    weights = read_weights(put(tmp_path, GOOD))
    with pytest.raises(UnsupportedError, match=r"'b' .* is I64; store it as F32"):
        load_array(weights["b"])
    os.truncate(tmp_path / "model.safetensors", START + 23)
    with pytest.raises(BadArtifactError, match=r"model\.safetensors became shorter"):
        load_array(weights["a"])
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors leads to no file"):
        load_array(weights["a"])


def test_shards_are_joined_and_the_single_file_wins(tmp_path: Path) -> None:
    shards = {"s1.safetensors": ["a", "b"], "s2.safetensors": ["c"]}
    put_shards(tmp_path, shards, {n: s for s, names in shards.items() for n in names})
    weights = read_weights(tmp_path)
    assert {name: t.path.name for name, t in weights.items()} == {
        "a": "s1.safetensors",
        "b": "s1.safetensors",
        "c": "s2.safetensors",
    }
    put(tmp_path, GOOD)
    assert {t.path.name for t in read_weights(tmp_path).values()} == {"model.safetensors"}


def test_links_of_a_cache_are_resolved(tmp_path: Path) -> None:
    blob = put(tmp_path / "blobs", GOOD, "cafe") / "cafe"
    snapshot = tmp_path / "snapshots"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to("../blobs/cafe")
    assert {t.path for t in read_weights(snapshot).values()} == {Path(os.path.realpath(blob))}


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "has 0 bytes, too few"),
    "seven bytes": (GOOD[:7], "has 7 bytes, too few"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid ...", "run git lfs pull"),
    "length beyond file": ((len(GOOD) - 7).to_bytes(8, "little") + GOOD[8:], "announces a header"),
    "length 2**64-1": (b"\xff" * 8 + GOOD[8:], "header of 18446744073709551615 bytes"),
    "length one short": ((START - 9).to_bytes(8, "little") + GOOD[8:], "its JSON is damaged"),
    "not JSON": (pack(b"{nonsense", b""), "its JSON is damaged"),
    "not UTF-8": (pack(b'{"\xff": 1}', b""), "its JSON is damaged"),
    "nested too deep": (pack(b'{"a":' + b"[" * 100_000, b""), "its JSON is damaged"),
    "huge integer": (pack(b'{"a":' + b"9" * 5000 + b"}", b""), "its JSON is damaged"),
    "an array": (pack([], b""), "its JSON is no object"),
    "repeated name": (pack(b'{"a": 1, "a": 2}', b""), "key 'a' occurs twice"),
    "name with a lone surrogate": (pack(b'{"\\ud800": {}}', b""), "its JSON is damaged"),
    "bad metadata": (pack({"__metadata__": {"a": 1}}, b""), "__metadata__ is not a table"),
    "entry is a number": (pack({"a": 4}, b""), "entry 'a' is not a table"),
    "no dtype": (
        pack({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        "unknown dtype None",
    ),
    "unknown dtype": (pack({"a": entry("F33", [1], 0, 4)}, b"1234"), "unknown dtype 'F33'"),
    "dtype is a list": (pack({"a": {"dtype": ["F32"]}}, b""), "unknown dtype"),
    "no shape": (pack({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"), "no valid shape"),
    "negative shape": (pack({"a": entry("F32", [-1, -1], 0, 4)}, b"1234"), "no valid shape"),
    "fraction in shape": (pack(b'{"a":{"dtype":"F32","shape":[1.0]}}', b""), "no valid shape"),
    "boolean in shape": (pack(b'{"a":{"dtype":"F32","shape":[true]}}', b""), "no valid shape"),
    "too many dimensions": (pack({"a": entry("F32", [1] * 65, 0, 4)}, b"1234"), "no valid shape"),
    "dimension of 2**63": (pack({"a": entry("F32", [2**63, 0], 0, 0)}, b""), "no valid shape"),
    "no offsets": (pack({"a": {"dtype": "F32", "shape": [1]}}, b"1234"), "no valid data_offsets"),
    "three offsets": (
        pack({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, b"1"),
        "no valid data_offsets",
    ),
    "negative offset": (pack({"a": entry("U8", [1], -1, 0)}, b"1"), "no valid data_offsets"),
    "offsets swapped": (pack({"a": entry("U8", [1], 1, 0)}, b"1"), "no valid data_offsets"),
    "too few bytes": (pack({"a": entry("F32", [2], 0, 4)}, b"1234"), r"F32 \[2\] needs 8"),
    "too many bytes": (pack({"a": entry("F16", [2], 0, 8)}, b"12345678"), r"F16 \[2\] needs 4"),
    "half a byte left": (pack({"a": entry("F4", [3], 0, 1)}, b"1"), r"F4 \[3\] needs 2"),
    "overlap": (
        pack({"a": entry("U8", [4], 0, 4), "b": entry("U8", [2], 3, 5)}, b"12345"),
        "'b' overlaps",
    ),
    "same place twice": (
        pack({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, b"1234"),
        "'b' overlaps",
    ),
    "hole": (
        pack({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"123"),
        "'b' leaves a hole",
    ),
    "hole at the start": (pack({"a": entry("U8", [1], 1, 2)}, b"12"), "'a' leaves a hole"),
    "beyond the file": (pack({"a": entry("U8", [9], 0, 9)}, b"12345678"), "is cut short"),
    "cut by one byte": (GOOD[:-1], f"is cut short: {len(GOOD) - 1} of {len(GOOD)} bytes"),
    "one byte more": (GOOD + b"\0", "has 1 bytes after its last weight"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_a_bad_artifact_with_file_and_remedy(tmp_path: Path, case: str) -> None:
    content, expected = DAMAGED[case]
    folder = put(tmp_path, content)
    with pytest.raises(BadArtifactError, match=expected) as caught:
        read_weights(folder)
    assert str(folder / "model.safetensors") in caught.value.message
    assert caught.value.message.endswith(("; download it again", "; run git lfs pull"))
    assert "\n" not in caught.value.message


def test_header_above_100_mb_is_refused_unread(tmp_path: Path) -> None:
    folder = put(tmp_path, (100_000_001).to_bytes(8, "little"))
    os.truncate(folder / "model.safetensors", 100_000_100)  # sparse
    assert "header of 100000001 bytes" in error_of(BadArtifactError, folder)


def test_every_cut_of_a_good_file_is_refused(tmp_path: Path) -> None:
    for length in range(len(GOOD)):
        error_of(BadArtifactError, put(tmp_path, GOOD[:length]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.integers(0, START - 1), junk=st.binary(min_size=1, max_size=12))
def test_random_damage_raises_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, junk: bytes
) -> None:
    content = GOOD[:place] + junk + GOOD[place + len(junk) :]
    folder = put(tmp_path_factory.getbasetemp() / "fuzz", content)
    try:
        weights = read_weights(folder)
    except SemanticError:
        return
    assert sum(t.nbytes for t in weights.values()) <= len(content)
    assert all(8 < t.offset <= t.offset + t.nbytes <= len(content) for t in weights.values())


SHARDS = {"s1.safetensors": ["a"], "s2.safetensors": ["b"]}
BAD_INDEX: dict[str, tuple[object, str]] = {
    "no map": (None, 'no table "weight_map"'),
    "empty map": ({}, 'no table "weight_map"'),
    "a list": (["a"], 'no table "weight_map"'),
    "shard is a number": ({"a": 1}, "gives 'a' no file name"),
    "shard is empty": ({"a": ""}, "gives 'a' no file name"),
    "shard with NUL": ({"a": "s1\0"}, "gives 'a' no file name"),
    "parent folder": ({"a": "../s1.safetensors"}, r"outside its folder: '\.\./s1"),
    "parent in the middle": ({"a": "x/../../s1.safetensors"}, "outside its folder"),
    "absolute": ({"a": "/s1.safetensors"}, "outside its folder"),
    "absent weight": (
        {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s2.safetensors"},
        r"s2\.safetensors lacks weight 'c'",
    ),
    "wrong shard": (
        {"a": "s2.safetensors", "b": "s1.safetensors"},
        r"s2\.safetensors lacks weight 'a'",
    ),
    "unlisted weight": ({"b": "s2.safetensors", "x": "s3.safetensors"}, "'y', which .* not list"),
}


@pytest.mark.parametrize("case", BAD_INDEX)
def test_contradicting_index_is_a_bad_artifact(tmp_path: Path, case: str) -> None:
    weight_map, expected = BAD_INDEX[case]
    put_shards(tmp_path, SHARDS | {"s3.safetensors": ["x", "y"]}, weight_map)
    with pytest.raises(BadArtifactError, match=expected) as caught:
        read_weights(tmp_path)
    assert caught.value.message.startswith(str(tmp_path))


def test_weight_in_two_shards_is_a_bad_artifact(tmp_path: Path) -> None:
    shards = {"s1.safetensors": ["a", "b"], "s2.safetensors": ["b"]}
    put_shards(tmp_path, shards, {"a": "s1.safetensors", "b": "s2.safetensors"})
    message = error_of(BadArtifactError, tmp_path)
    assert "'b' is in 's1.safetensors' and in 's2.safetensors'" in message


def test_damaged_index_and_damaged_shard_are_named(tmp_path: Path) -> None:
    index = "model.safetensors.index.json"
    assert index in error_of(BadArtifactError, put(tmp_path, b"[1", index))
    put_shards(tmp_path, SHARDS, {"a": "s1.safetensors", "b": "s2.safetensors"})
    put(tmp_path, b"x", "s2.safetensors")
    assert "s2.safetensors has 1 bytes" in error_of(BadArtifactError, tmp_path)


def test_missing_shard_is_not_found(tmp_path: Path) -> None:
    put_shards(tmp_path, SHARDS, {"a": "s1.safetensors", "z": "s9.safetensors"})
    assert "lacks the shard 's9.safetensors'" in error_of(NotFoundError, tmp_path)


def test_nothing_there_names_the_files_looked_for(tmp_path: Path) -> None:
    put(tmp_path, b"", "training_args.bin")
    message = error_of(NotFoundError, tmp_path)
    assert "neither model.safetensors nor model.safetensors.index.json" in message
    for folder in (tmp_path / "absent", tmp_path / "training_args.bin", tmp_path / "a\0b"):
        assert "cannot be listed" in error_of(NotFoundError, folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt", "m.pkl"])
def test_pickles_are_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    message = error_of(BadArtifactError, put(tmp_path, b"\x80\2.", name))
    assert f"only pickle weights ({name})" in message
    assert message.endswith("convert to safetensors")


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _broken_link(path: Path) -> None:
    path.symlink_to("blobs/gone")


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        (_directory, BadArtifactError, "is not a regular file"),
        (_fifo, BadArtifactError, "is not a regular file"),
        (_broken_link, NotFoundError, "leads to no file"),
        (_loop, BadArtifactError, "symbolic links"),
    ],
)
def test_what_is_no_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], kind: type[SemanticError], expected: str
) -> None:
    make(tmp_path / "model.safetensors")
    message = error_of(kind, tmp_path)
    assert expected in message
    assert str(tmp_path / "model.safetensors") in message


def test_unreadable_file_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    put(tmp_path, GOOD)
    monkeypatch.setattr(Path, "open", refuse)
    message = error_of(BadArtifactError, tmp_path)
    assert "model.safetensors cannot be read (Permission denied)" in message


def test_file_name_outside_utf8_is_refused(tmp_path: Path) -> None:
    target = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(target)).write_bytes(GOOD)
    (tmp_path / "model.safetensors").symlink_to(os.fsdecode(b"\xff"))
    assert "outside UTF-8; rename it" in error_of(BadArtifactError, tmp_path)
