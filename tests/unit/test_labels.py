"""Descriptions read from JSON, and label names in every style that artifacts use."""

import json
import os
import re
from pathlib import Path

import pytest

from libsemantic.engine.descriptions import (
    Description,
    file_size,
    list_names,
    read_description,
    read_json,
    stays_inside,
)
from libsemantic.engine.errors import BadArtifactError, NotFoundError
from libsemantic.engine.labels import Labels, read_labels

ABC = ("a", "b", "c")
BY_INDEX = {"0": "a", "1": "b", "2": "c"}
BY_NAME = {"c": 2, "a": 0, "b": 1}


def labels_of(
    folder: Path, config: object, **files: object
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Write ``config.json`` and ``<name>.json`` files; return names, source and warnings."""
    for name, content in {"config": config, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    description = read_description(folder / "config.json")
    assert description is not None
    labels, warnings = read_labels(folder, description)
    return labels.names, labels.source, warnings


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": BY_INDEX},
        {"id2label": BY_INDEX, "label2id": BY_NAME},
        {"id2label": {"2": "c", "0": "a", "1": "b"}, "num_labels": 3},
        {"id2label": ["a", "b", "c"], "_num_labels": 3},
    ],
)
def test_the_config_names_the_labels_in_index_order(tmp_path: Path, config: object) -> None:
    assert labels_of(tmp_path, config) == (ABC, "config.json id2label", ())


@pytest.mark.parametrize("empty", [{}, None])
def test_label2id_serves_where_id2label_is_absent(tmp_path: Path, empty: object) -> None:
    found = labels_of(tmp_path, {"id2label": empty, "label2id": BY_NAME})
    assert found == (ABC, "config.json label2id", ())


def test_more_than_ten_labels_are_not_sorted_as_text(tmp_path: Path) -> None:
    names = tuple(f"label {number}" for number in range(12))
    table = {str(number): names[number] for number in reversed(range(12))}
    assert labels_of(tmp_path, {"id2label": table})[0] == names


def test_generic_names_of_the_config_itself_are_kept(tmp_path: Path) -> None:
    config = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    assert labels_of(tmp_path, config)[0] == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"0": "a", "2": "c"}, "2 names but none for index 1"),
        ({"1": "a", "2": "b"}, "none for index 0"),
        ({"0": "a", "01": "b"}, "the key '01', which is no index"),
        ({"0": "a", "-1": "b"}, "the key '-1', which is no index"),
        ({"0": "a", "x": "b"}, "the key 'x', which is no index"),
        ({"0": "a", "²": "b"}, "the key '²', which is no index"),
        ({"0": "a", "1": ""}, "gives index 1 the name '', which is no text"),
        ({"0": "a", "1": " \t"}, "which is no text"),
        ({"0": 0, "1": 1}, "gives index 0 the name 0, which is no text"),
        ({"0": "same", "1": "b", "2": "same"}, "has 'same' twice, at 0 and 2"),
        ("a, b", "neither a table of labels nor a list"),
        (False, "neither a table of labels nor a list"),
        ([], "is empty"),
    ],
)
def test_a_wrong_id2label_is_refused(tmp_path: Path, table: object, reason: str) -> None:
    with pytest.raises(BadArtifactError) as raised:
        labels_of(tmp_path, {"id2label": table})
    assert reason in raised.value.message
    assert "config.json: 'id2label'" in raised.value.message
    assert "add id2label to config.json" in raised.value.message


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"a": 0, "b": 0}, "has index 0 twice"),
        ({"a": 0, "b": True}, "gives 'b' the index True, which is no number"),
        ({"a": "0"}, "gives 'a' the index '0', which is no number"),
        ({"a": 1}, "none for index 0"),
    ],
)
def test_a_wrong_label2id_is_refused(tmp_path: Path, table: object, reason: str) -> None:
    with pytest.raises(BadArtifactError, match=re.escape(reason)):
        labels_of(tmp_path, {"label2id": table})


def test_a_contradicting_label2id_is_a_warning(tmp_path: Path) -> None:
    found = labels_of(tmp_path, {"id2label": BY_INDEX, "label2id": {"a": 1, "b": 0, "c": 2}})
    assert found[0] == ABC
    assert found[2] == ("config.json label2id contradicts id2label: index 0 is 'b', not 'a'",)


def test_an_unusable_label2id_is_a_warning(tmp_path: Path) -> None:
    found = labels_of(tmp_path, {"id2label": BY_INDEX, "label2id": {"a": 1, "b": 1}})
    assert found[2] == ("config.json label2id is ignored: it has index 1 twice",)


@pytest.mark.parametrize("key", ["num_labels", "_num_labels"])
def test_a_contradicting_count_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadArtifactError, match=f"'{key}' is 2, config.json id2label has 3 names"):
        labels_of(tmp_path, {"id2label": BY_INDEX, key: 2})
    with pytest.raises(BadArtifactError, match=f"'{key}' is not a whole number"):
        labels_of(tmp_path, {"id2label": BY_INDEX, key: "3"})


STYLES = [
    BY_INDEX,
    BY_NAME,
    ["a", "b", "c"],
    {"label_to_idx": BY_NAME, "idx_to_label": BY_INDEX},
    {"label_to_id": BY_NAME, "id_to_label": BY_INDEX},
    {"label2id": BY_NAME, "id2label": BY_INDEX, "num_labels": 7, "classifier_pooling": "mean"},
    {"category_to_idx": BY_NAME, "category_descriptions": {"a": "of a"}},
    {"label_mapping": BY_NAME},
    {"label_mapping": BY_INDEX},
    {"id2label": ["a", "b", "c"]},
]
FILES = ["label_mapping", "labels", "category_mapping", "pii_type_mapping", "jailbreak_mapping_v2"]


@pytest.mark.parametrize("content", STYLES)
def test_a_label_file_serves_where_the_config_has_no_labels(
    tmp_path: Path, content: object
) -> None:
    found = labels_of(tmp_path, {}, label_mapping=content)
    assert found[:2] == (ABC, "label_mapping.json")
    assert found[2] == ("the labels come from label_mapping.json; config.json has none",)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", STYLES)
def test_an_agreeing_label_file_is_silent(tmp_path: Path, name: str, content: object) -> None:
    assert labels_of(tmp_path, {"id2label": BY_INDEX}, **{name: content})[2] == ()


@pytest.mark.parametrize(
    ("content", "difference"),
    [
        ({"label_to_idx": {"a": 1, "b": 0, "c": 2}}, "index 0 is 'b', not 'a'"),
        ({"0": "a", "1": "b"}, "2 labels, not 3"),
        (["a", "b", "C"], "index 2 is 'C', not 'c'"),
    ],
)
def test_a_disagreeing_label_file_is_a_warning_and_the_config_wins(
    tmp_path: Path, content: object, difference: str
) -> None:
    found = labels_of(tmp_path, {"id2label": BY_INDEX}, pii_type_mapping=content)
    assert found[0] == ABC
    assert found[2] == (f"pii_type_mapping.json contradicts config.json id2label: {difference}",)


def test_label_files_that_disagree_are_refused_where_one_is_needed(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError) as raised:
        labels_of(tmp_path, {}, label_mapping=["x", "b", "c"], labels=ABC)
    assert "labels.json contradicts label_mapping.json: index 0 is 'a', not 'x'" in str(
        raised.value
    )


def test_label_files_that_agree_serve_with_one_warning(tmp_path: Path) -> None:
    found = labels_of(tmp_path, {}, a_mapping=BY_INDEX, b_mapping={"label2id": BY_NAME})
    assert found == (
        ABC,
        "a_mapping.json",
        ("the labels come from a_mapping.json; config.json has none",),
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "damaged JSON"),
        ({"to": {"x": 1}}, "it has the key 'to', which is no index"),
        ({"id2label": {"0": "a"}, "label2id": {"b": 0}}, "it contradicts itself"),
        ({"id2label": {"1": "a"}}, "id2label has 1 names but none for index 0"),
        ('"text"', "it is neither a table of labels nor a list"),
        ("null", "it is neither a table of labels nor a list"),
    ],
)
def test_a_label_file_without_labels_matters_only_where_it_is_needed(
    tmp_path: Path, content: object, reason: str
) -> None:
    (warning,) = labels_of(tmp_path, {"id2label": BY_INDEX}, x_mapping=content)[2]
    assert warning.startswith("label file x_mapping.json is ignored: ")
    assert reason in warning
    with pytest.raises(BadArtifactError) as raised:
        labels_of(tmp_path, {}, x_mapping=content)
    assert "x_mapping.json" in raised.value.message
    assert reason in raised.value.message


def test_labels_are_never_invented(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError) as raised:
        labels_of(tmp_path, {"num_labels": 2}, tokenizer=["a", "b"])
    assert "neither id2label nor label2id" in raised.value.message
    assert "add id2label to config.json" in raised.value.message


def test_a_head_of_another_width_is_refused_with_both_numbers() -> None:
    labels = Labels(ABC, "config.json", "id2label")
    labels.require_width(3, "classifier.weight")
    with pytest.raises(BadArtifactError) as raised:
        labels.require_width(4, "classifier.weight")
    assert raised.value.message.startswith(
        "the head has 4 outputs (classifier.weight), the labels are 3 (config.json id2label)"
    )


# Reading JSON


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "damaged JSON"),
        (b"", "damaged JSON"),
        (b'{"a": "\xff"}', "can't decode byte 0xff"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 100_000, "recursion"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (rb'{"a": "\ud800"}', "surrogates not allowed"),
        (rb'{"\udc00": 1}', "surrogates not allowed"),
        (b'{"a": 1, "b": 2, "a": 3}', "key 'a' stands twice"),
    ],
)
def test_damaged_json_is_refused_with_its_file(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(BadArtifactError) as raised:
        read_json(path)
    assert str(path) in raised.value.message
    assert reason in raised.value.message
    assert "\n" not in raised.value.message


def test_harmless_oddities_of_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(rb'{"pair": "\ud83d\ude00", "twice": 1, "twice": 1, "inf": Infinity}')
    assert read_json(path) == {"pair": "😀", "twice": 1, "inf": float("inf")}


def test_a_huge_description_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate((8 << 20) + 1)
    with pytest.raises(
        BadArtifactError, match=r"config.json has 8388609 bytes; .* at most 8388608"
    ):
        read_json(path)


@pytest.mark.parametrize("text", ["[]", '"x"', "1", "null"])
def test_a_description_must_be_an_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadArtifactError, match=r"config.json does not hold a JSON object"):
        read_description(path)


def test_absent_files_differ_from_unreadable_ones(tmp_path: Path) -> None:
    absent = tmp_path / "no" / "config.json"
    assert read_description(absent) is None
    assert file_size(absent) is None
    assert list_names(tmp_path / "no") == []
    with pytest.raises(NotFoundError, match="is missing"):
        read_json(absent)


def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    pipe, dangling, loop = (tmp_path / name for name in ("pipe", "dangling", "loop"))
    os.mkfifo(pipe)
    dangling.symlink_to("nothing")
    loop.symlink_to("loop")
    with pytest.raises(BadArtifactError, match="pipe is not a regular file"):
        read_json(pipe)
    with pytest.raises(BadArtifactError, match="is not a regular file"):
        file_size(tmp_path)
    with pytest.raises(NotFoundError, match="dangling is a link to nothing"):
        file_size(dangling)
    with pytest.raises(NotFoundError, match="loop cannot be read: Too many levels"):
        file_size(loop)


def test_a_refusal_of_the_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(NotFoundError, match=r"config.json cannot be read: Permission denied"):
        read_json(tmp_path / "config.json")
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(NotFoundError, match="cannot be read: Permission denied"):
        list_names(tmp_path)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("1", int, "a whole number"),
        (1.0, int, "a whole number"),
        (True, int, "a whole number"),
        (1, bool, "true or false"),
        (1, str, "a text"),
        ({}, list, "a list"),
        ([], dict, "an object"),
    ],
)
def test_a_key_of_the_wrong_type_is_named(value: object, kind: type[int], expected: str) -> None:
    description = Description(Path("/m/config.json"), {"key": value})
    with pytest.raises(BadArtifactError, match=f"/m/config.json: 'key' is not {expected}"):
        description.get("key", kind)


@pytest.mark.parametrize(
    ("value", "length"),
    [(512, 512), (10**6, 10**6), (10**6 + 1, None), (10**30, None), (1e30, None), (None, None)],
)
def test_lengths_above_a_million_mean_no_limit(value: object, length: int | None) -> None:
    assert Description(Path("c"), {"n": value}).length("n") == length


@pytest.mark.parametrize("value", [0, -1, 512.0, "512", True, float("nan")])
def test_impossible_lengths_are_refused(value: object) -> None:
    with pytest.raises(BadArtifactError, match="'n' is"):
        Description(Path("c"), {"n": value}).length("n")


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("a", True),
        ("a/b", True),
        ("", True),
        ("a..b", True),
        ("/a", False),
        ("../a", False),
        ("a/../../b", False),
        ("a\0b", False),
    ],
)
def test_names_that_leave_the_folder_are_told_apart(name: str, inside: bool) -> None:
    assert stays_inside(name) is inside
