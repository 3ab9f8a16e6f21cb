"""Model folders, whole and broken: what is read from them and what is refused."""

import json
import os
import platform
import shutil
from collections.abc import Collection, Sequence
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libsemantic.engine.artifacts import ModelSpec, read_artifact
from libsemantic.engine.config import Precision, Task
from libsemantic.engine.errors import (
    BadArtifactError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
SEQUENCE, TOKEN = Task.SEQUENCE_CLASSIFICATION, Task.TOKEN_CLASSIFICATION
WIDTH = 8
TABLE = {"0": "a", "1": "b", "2": "c"}
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": WIDTH,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "id2label": TABLE,
}
EMBEDDER = CONFIG | {"architectures": ["BertModel"]}
POOLING = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
Output = tuple[str, int, Sequence[int | str]]  # name, type (1 = float), shape
LOGITS: Output = ("logits", 1, ["batch", 3])
STATES: Output = ("last_hidden_state", 1, ["batch", "tokens", WIDTH])
POOLED: Output = ("sentence_embedding", 1, ["batch", WIDTH])
DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "int8": np.int8}


def write(folder: Path, name: str, content: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def make(folder: Path, config: object = CONFIG, *weights: str, **files: object) -> Path:
    """Write a folder: config, tokenizer, empty weight files, and ``<name>.json`` files."""
    write(folder, "config.json", config)
    write(folder, "tokenizer.json", "{}")
    for name in weights or ("model.safetensors",):
        write(folder, name, "")
    for name, content in files.items():
        write(folder, f"{name}.json", content)
    return folder


def make_onnx(
    folder: Path,
    config: object = CONFIG,
    *outputs: Output,
    **dtypes: str,
) -> Path:
    """Write a folder with ONNX files: ``name="fp16"`` makes ``name.onnx``, "__" is a slash."""
    write(folder, "config.json", config)
    write(folder, "tokenizer.json", "{}")
    for name, dtype in (dtypes or {"model": "fp32"}).items():
        path = folder / f"{name.replace('__', '/')}.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(onnx_bytes(dtype, outputs or (LOGITS,)))
    return folder


def onnx_bytes(dtype: str, outputs: Collection[Output]) -> bytes:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
    weight = numpy_helper.from_array(np.zeros((4, 4), DTYPES[dtype]), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(*output) for output in outputs]
    graph = helper.make_graph([node], "g", [ids], values, [weight])
    data: bytes = helper.make_model(graph).SerializeToString()
    return data


def read(
    folder: Path | str,
    task: Task = Task.AUTO,
    precision: Precision = Precision.AUTO,
    families: Collection[str] = ("bert",),
) -> ModelSpec:
    return read_artifact(str(folder), task=task, precision=precision, families=families)


# Whole folders


@pytest.mark.parametrize(
    ("name", "task", "labels", "pooling", "normalize"),
    [
        ("bert-seq", SEQUENCE, 7, (), None),
        ("bert-reranker", SEQUENCE, 1, (), None),
        ("bert-token", TOKEN, 7, (), None),
        ("bert-embed-cls", Task.EMBEDDING, 0, ("pooling_mode_cls_token",), True),
        ("bert-embed-mean", Task.EMBEDDING, 0, ("pooling_mode_mean_tokens",), True),
    ],
)
def test_the_golden_models_are_read(
    name: str, task: Task, labels: int, pooling: tuple[str, ...], normalize: bool | None
) -> None:
    spec = read(GOLDEN / name)
    assert (spec.name, spec.task, spec.family) == (name, task, "bert")
    assert len(spec.labels.names if spec.labels else ()) == labels
    assert (spec.pooling, spec.normalize) == (pooling, normalize)
    assert (spec.hidden_size, spec.embedding_size) == (64, 64 if pooling else 0)
    assert (spec.position_limit, spec.default_max_tokens) == (128, 64)
    assert spec.source == "safetensors"
    assert (spec.pad_token_id, spec.pad_token, spec.warnings) == (0, "[PAD]", ())
    assert spec.weight_bytes == (GOLDEN / name / "model.safetensors").stat().st_size
    needed = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    if pooling:
        needed += ["1_Pooling/config.json", "modules.json", "sentence_bert_config.json"]
    assert [file for file, _ in spec.files] == sorted(needed)
    assert all((GOLDEN / name / file).stat().st_size == size for file, size in spec.files)


def test_a_spec_is_frozen_with_its_config(tmp_path: Path) -> None:
    spec = read(make(tmp_path))
    for field in fields(spec):
        with pytest.raises(FrozenInstanceError):
            setattr(spec, field.name, None)
    assert isinstance(spec.config, MappingProxyType)


def test_the_folder_is_free_of_links_and_gives_the_name(tmp_path: Path) -> None:
    make(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    spec = read(tmp_path / "link")
    assert (spec.folder, spec.name) == ((tmp_path / "real").resolve(), "real")


def test_files_may_be_links_as_in_a_cache_of_blobs(tmp_path: Path) -> None:
    make(tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    spec = read(snapshot)
    assert (spec.name, spec.weights_path) == ("abc", snapshot.resolve() / "model.safetensors")


def test_a_subfolder_may_hold_the_transformer(tmp_path: Path) -> None:
    make(tmp_path / "0_Transformer", EMBEDDER, sentence_bert_config={"max_seq_length": 32})
    write(tmp_path, "1_Pooling/config.json", POOLING)
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    write(tmp_path, "modules.json", [{"path": path, "type": kinds[path]} for path in kinds])
    spec = read(tmp_path)
    assert (spec.folder, spec.model_folder) == (tmp_path, tmp_path / "0_Transformer")
    assert spec.tokenizer_path == tmp_path / "0_Transformer" / "tokenizer.json"
    assert (spec.default_max_tokens, spec.normalize) == (32, False)
    assert "0_Transformer/model.safetensors" in dict(spec.files)


# Paths


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("nothing", NotFoundError, "No such file or directory"),
        ("file/below", NotFoundError, "Not a directory"),
        ("file", InvalidArgumentError, "is not a folder"),
        ("loop", InvalidArgumentError, "Too many levels of symbolic links"),
        ("x" * 300, InvalidArgumentError, "File name too long"),
        ("a\0b", InvalidArgumentError, "null "),
        ("empty", NotFoundError, "has no config.json; a model folder needs config.json, tokenizer"),
    ],
)
def test_a_path_that_is_no_model_folder_is_named(
    tmp_path: Path, name: str, error: type[Exception], reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(error) as raised:
        read(f"{tmp_path}/{name}")
    assert reason in str(raised.value)
    assert repr(f"{tmp_path}/{name}")[1:-1] in str(raised.value)


@pytest.mark.parametrize("path", ["", "/dev/null"])
def test_what_is_no_folder_is_an_invalid_argument(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a folder; give the one that holds"):
        read(path)


def test_an_unreadable_folder_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(NotFoundError, match="cannot be read: Permission denied"):
        read(make(tmp_path))


def test_a_missing_tokenizer_is_named_with_the_remedy(tmp_path: Path) -> None:
    (make(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(NotFoundError, match=r"no tokenizer.json; .*tokenizer.save_pretrained"):
        read(tmp_path)


def test_a_pipe_in_place_of_a_description_is_not_opened(tmp_path: Path) -> None:
    (make(tmp_path) / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(BadArtifactError, match=r"config.json is not a regular file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": 1}, "'model_type' is not a text"),
        ({"architectures": "BertModel"}, "'architectures' is not a list"),
        ({"architectures": [1]}, "'architectures' must list texts"),
        ({"hidden_size": "8"}, "'hidden_size' is not a whole number"),
        ({"max_position_embeddings": 0}, "'max_position_embeddings' is 0"),
        ({"pad_token_id": "0"}, "'pad_token_id' is not a whole number"),
        ({"pad_token_id": -1}, "'pad_token_id' is -1"),
        ({"problem_type": "guess"}, "'problem_type' is 'guess'; it is one of single_label"),
        ({"id2label": {"1": "a"}}, "'id2label' has 1 names but none for index 0"),
    ],
)
def test_a_damaged_config_is_refused_with_its_key(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadArtifactError) as raised:
        read(make(tmp_path, CONFIG | changed))
    assert f"{tmp_path}/config.json: {reason}" in raised.value.message


@pytest.mark.parametrize("name", ["config", "tokenizer_config", "modules", "sentence_bert_config"])
def test_damaged_json_is_refused_with_its_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadArtifactError, match=f"{name}.json is damaged JSON"):
        read(make(tmp_path, **{name: "{"}))


def test_files_that_are_not_needed_may_be_broken(tmp_path: Path) -> None:
    make(tmp_path, CONFIG, "model.safetensors", "pytorch_model.bin", "model.onnx")
    write(tmp_path, "config_sentence_transformers.json", "{")
    write(tmp_path, "generation_config.json", "{")
    (tmp_path / "README.md").symlink_to("nothing")
    assert len(read(tmp_path).files) == 3


# Which weights


def test_safetensors_win_where_a_graph_can_be_built(tmp_path: Path) -> None:
    make_onnx(tmp_path)
    write(tmp_path, "model.safetensors", "x" * 100)
    spec = read(tmp_path)
    assert (spec.source, spec.onnx, spec.output, spec.weight_bytes) == (
        "safetensors",
        None,
        None,
        100,
    )
    spec = read(tmp_path, families=("roberta",))
    assert (spec.source, spec.weights_path) == ("onnx", tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        (Precision.AUTO, "model.safetensors"),
        (Precision.FP32, "model.safetensors"),
        (Precision.BF16, "model.safetensors"),
        (Precision.INT8, "onnx/model_quantized.onnx"),
        (Precision.FP16, "onnx/model_fp16.onnx"),
    ],
)
def test_a_ready_file_of_a_small_precision_wins_over_building(
    tmp_path: Path, precision: Precision, name: str
) -> None:
    make_onnx(tmp_path, onnx__model_quantized="int8", onnx__model_fp16="fp16", onnx__model="fp32")
    write(tmp_path, "model.safetensors", "")
    assert read(tmp_path, precision=precision).weights_path == tmp_path / name


def test_safetensors_serve_where_no_ready_file_has_the_precision(tmp_path: Path) -> None:
    make_onnx(tmp_path, model_int8="fp32")
    write(tmp_path, "model.safetensors", "")
    assert read(tmp_path, precision=Precision.INT8).source == "safetensors"


def test_shards_are_listed_with_their_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    make(tmp_path, CONFIG, "m-1.safetensors", "m-2.safetensors")
    write(tmp_path, "model.safetensors.index.json", index)
    write(tmp_path, "m-1.safetensors", "12345")
    spec = read(tmp_path)
    assert (spec.source, spec.weights_path.name) == ("safetensors", "model.safetensors.index.json")
    assert {"m-1.safetensors": 5, "m-2.safetensors": 0}.items() <= dict(spec.files).items()
    assert spec.weight_bytes == 5 + spec.weights_path.stat().st_size
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"m-2.safetensors is missing, model.safetensors.index"):
        read(tmp_path)


@pytest.mark.parametrize(
    "index",
    [None, {}, {"a": 1}, {"a": ["b"]}, {"a": "../b"}, {"a": "/b"}],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: object) -> None:
    make(tmp_path, CONFIG, "other")
    write(tmp_path, "model.safetensors.index.json", {"weight_map": index})
    with pytest.raises(BadArtifactError, match=r"index.json: 'weight_map' must map weights"):
        read(tmp_path)


def test_a_family_that_cannot_be_built_is_named_with_the_known_ones(tmp_path: Path) -> None:
    make(tmp_path, CONFIG | {"model_type": "mamba"})
    with pytest.raises(UnsupportedError, match=r"model_type 'mamba' .* known are bert, roberta"):
        read(tmp_path, families={"roberta", "bert"})


def test_safetensors_need_a_model_type(tmp_path: Path) -> None:
    config = {key: CONFIG[key] for key in CONFIG if key != "model_type"}
    with pytest.raises(BadArtifactError, match=r"'model_type' is missing; model.safetensors needs"):
        read(make(tmp_path, config))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "a.pkl", "a.ckpt"]
)
def test_pickles_are_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    make(tmp_path, CONFIG, name)
    with pytest.raises(BadArtifactError) as raised:
        read(tmp_path)
    assert f"only as a pickle ({name})" in raised.value.message
    assert "safe_serialization=True" in raised.value.message


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    make(tmp_path, CONFIG, "tf_model.h5")
    with pytest.raises(NotFoundError) as raised:
        read(tmp_path)
    for name in ("model.safetensors", "model.safetensors.index.json", "*.onnx", "onnx/*.onnx"):
        assert name in raised.value.message


def test_a_dangling_weight_file_is_named(tmp_path: Path) -> None:
    (make(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(NotFoundError, match=r"model.safetensors is a link to nothing"):
        read(tmp_path)


# Which ONNX file


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({"odd_name": "int8"}, "odd_name.onnx"),
        ({"onnx__model_q4": "int8"}, "onnx/model_q4.onnx"),
        ({"onnx__model": "fp32", "onnx__model_fp16": "fp16"}, "onnx/model.onnx"),
        ({"model_int8": "int8", "model": "fp32"}, "model.onnx"),
    ],
)
def test_the_only_file_or_the_one_with_the_default_name_is_taken(
    tmp_path: Path, files: dict[str, str], chosen: str
) -> None:
    spec = read(make_onnx(tmp_path, **files))
    assert spec.weights_path == tmp_path / chosen
    assert spec.warnings == ()
    assert chosen in dict(spec.files)


def test_two_files_with_the_default_name_are_a_warning(tmp_path: Path) -> None:
    spec = read(make_onnx(tmp_path, onnx__model="fp32", model="fp32"))
    assert spec.weights_path == tmp_path / "model.onnx"
    assert spec.warnings == ("model.onnx is used, onnx/model.onnx is not",)


def test_several_files_without_a_default_are_listed(tmp_path: Path) -> None:
    make_onnx(tmp_path, encoder_model="fp32", onnx__model_int8="int8")
    with pytest.raises(BadArtifactError) as raised:
        read(tmp_path)
    assert "encoder_model.onnx, onnx/model_int8.onnx; ask for a precision" in raised.value.message


@pytest.mark.parametrize(
    ("precision", "files", "chosen"),
    [
        (Precision.FP32, {"model": "fp32", "model_fp16": "fp16"}, "model"),
        (Precision.FP16, {"model": "fp32", "model_fp16": "fp16"}, "model_fp16"),
        (Precision.INT8, {"model_uint8": "int8", "model_int8": "int8"}, "model_int8"),
        (Precision.INT8, {"onnx__model_qint8_any": "int8"}, "onnx/model_qint8_any"),
        # Names lie: the file called fp16 holds fp32, the one called model holds fp16.
        (Precision.FP32, {"model": "fp16", "model_fp16": "fp32"}, "model_fp16"),
        (Precision.FP16, {"model": "fp16", "model_fp16": "fp32"}, "model"),
        (Precision.BF16, {"model": "fp32", "strange": "bf16"}, "strange"),
        (Precision.INT8, {"only": "int8"}, "only"),
    ],
)
def test_a_precision_is_found_by_name_and_by_what_the_graph_holds(
    tmp_path: Path, precision: Precision, files: dict[str, str], chosen: str
) -> None:
    spec = read(make_onnx(tmp_path, **files), precision=precision)
    assert spec.weights_path == tmp_path / f"{chosen}.onnx"


def test_a_precision_that_is_not_there_lists_what_is(tmp_path: Path) -> None:
    make_onnx(tmp_path, model="fp32", onnx__model_int8="fp16")
    write(tmp_path, "broken.onnx", "x")
    with pytest.raises(UnsupportedError) as raised:
        read(tmp_path, precision=Precision.INT8)
    assert "no ONNX file of precision int8" in raised.value.message
    for found in ("model.onnx (fp32)", "onnx/model_int8.onnx (fp16)", "broken.onnx (not usable)"):
        assert found in raised.value.message


def test_a_precision_that_several_odd_names_have_is_refused(tmp_path: Path) -> None:
    make_onnx(tmp_path, a="fp32", b="fp32")
    with pytest.raises(BadArtifactError, match=r"several files of fp32: a.onnx \(fp32\), b.onnx"):
        read(tmp_path, precision=Precision.FP32)


def test_a_broken_file_of_the_name_that_was_asked_for_is_told(tmp_path: Path) -> None:
    make_onnx(tmp_path, model="int8")
    write(tmp_path, "model_int8.onnx", "x")
    with pytest.raises(BadArtifactError, match=r"model_int8.onnx is not an ONNX file"):
        read(tmp_path, precision=Precision.INT8)


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [("x86_64", "model_qint8_avx512.onnx"), ("aarch64", "model_qint8_arm64.onnx")],
)
def test_a_file_tuned_for_another_processor_is_taken_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, chosen: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    make_onnx(tmp_path, model_qint8_arm64="int8", model_qint8_avx512="int8")
    assert read(tmp_path, precision=Precision.INT8).weights_path.name == chosen


def test_external_data_belongs_to_the_files(tmp_path: Path) -> None:
    make_onnx(tmp_path / "m", onnx__model="fp32")
    path = tmp_path / "m" / "onnx" / "model.onnx"
    onnx.save_model(
        onnx.load(path),
        path,
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    spec = read(tmp_path / "m")
    assert dict(spec.files)["onnx/model.onnx_data"] == 64
    assert spec.weight_bytes == path.stat().st_size + 64
    path.with_name("model.onnx_data").unlink()
    with pytest.raises(NotFoundError, match=r"needs 'model.onnx_data' beside it"):
        read(tmp_path / "m")


# Which task


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", SEQUENCE),
        ("BertForTokenClassification", TOKEN),
        ("BertModel", Task.EMBEDDING),
    ],
)
def test_the_architecture_tells_the_task(tmp_path: Path, architecture: str, task: Task) -> None:
    spec = read(make(tmp_path, CONFIG | {"architectures": [architecture, "OtherModel"]}))
    assert (spec.task, spec.architecture) == (task, architecture)
    assert read(tmp_path, task).task is task


@pytest.mark.parametrize(
    "architecture",
    ["BertForMaskedLM", "GPT2LMHeadModel", "EncoderDecoderModel", "BertForMultipleChoice"],
)
@pytest.mark.parametrize("task", list(Task))
def test_other_architectures_are_named(tmp_path: Path, architecture: str, task: Task) -> None:
    make(tmp_path, CONFIG | {"architectures": [architecture]})
    with pytest.raises(UnsupportedError, match=f"architecture '{architecture}'"):
        read(tmp_path, task)


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "Qwen3ForCausalLM"])
def test_pooling_makes_an_embedding_model_of_any_architecture(
    tmp_path: Path, architecture: str
) -> None:
    make(tmp_path, CONFIG | {"architectures": [architecture]})
    write(tmp_path, "1_Pooling/config.json", POOLING)
    assert read(tmp_path).task is Task.EMBEDDING
    assert read(tmp_path, Task.EMBEDDING).pooling == ("pooling_mode_cls_token",)


def test_a_classifier_with_pooling_files_can_do_both(tmp_path: Path) -> None:
    write(make(tmp_path), "1_Pooling/config.json", POOLING)
    assert read(tmp_path).task is Task.EMBEDDING
    assert read(tmp_path, SEQUENCE).task is SEQUENCE
    with pytest.raises(UnsupportedError, match="cannot do token_classification; it can do embeddi"):
        read(tmp_path, TOKEN)


def test_modules_without_pooling_leave_the_task_to_the_architecture(tmp_path: Path) -> None:
    modules = [
        {"path": "", "type": "sentence_transformers.x.Transformer"},
        {"path": "1_LogitScore", "type": "LogitScore"},
    ]
    assert read(make(tmp_path, modules=modules)).task is SEQUENCE


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertModel", SEQUENCE),
        ("BertForSequenceClassification", Task.EMBEDDING),
        ("BertForTokenClassification", SEQUENCE),
    ],
)
def test_a_task_that_the_artifact_cannot_do_is_named_with_it(
    tmp_path: Path, architecture: str, task: Task
) -> None:
    make(tmp_path, CONFIG | {"architectures": [architecture]})
    with pytest.raises(UnsupportedError) as raised:
        read(tmp_path, task)
    assert f"architecture {architecture!r} cannot do {task.name.lower()}" in raised.value.message


@pytest.mark.parametrize("architectures", [None, []])
@pytest.mark.parametrize(
    ("output", "task"),
    [
        (LOGITS, SEQUENCE),
        (("logits", 1, ["b", "t", 3]), TOKEN),
        (STATES, Task.EMBEDDING),
        (POOLED, Task.EMBEDDING),
    ],
)
def test_outputs_tell_the_task_where_no_architecture_does(
    tmp_path: Path, architectures: object, output: Output, task: Task
) -> None:
    make_onnx(tmp_path, CONFIG | {"architectures": architectures}, output)
    assert read(tmp_path).task is task


def test_a_task_that_nothing_tells_must_be_passed(tmp_path: Path) -> None:
    config = CONFIG | {"architectures": None}
    with pytest.raises(BadArtifactError, match=r"'architectures' is missing .*; pass task"):
        read(make(tmp_path / "a", config))
    assert read(tmp_path / "a", TOKEN).task is TOKEN
    make_onnx(tmp_path / "b", config, LOGITS, STATES)
    with pytest.raises(BadArtifactError, match="pass task"):
        read(tmp_path / "b")
    for task, name in ((Task.EMBEDDING, "last_hidden_state"), (SEQUENCE, "logits")):
        output = read(tmp_path / "b", task).output
        assert output is not None
        assert output.name == name


# Labels and outputs


def test_a_head_of_another_width_than_the_labels_is_refused(tmp_path: Path) -> None:
    make_onnx(tmp_path, CONFIG, ("logits", 1, ["b", 4]))
    with pytest.raises(BadArtifactError) as raised:
        read(tmp_path)
    assert "the head has 4 outputs (output 'logits' of" in raised.value.message
    assert "the labels are 3 (config.json id2label)" in raised.value.message


def test_a_label_file_is_needed_only_where_the_config_has_no_labels(tmp_path: Path) -> None:
    make(tmp_path, label_mapping={"label_to_id": {"a": 1, "b": 0, "c": 2}})
    spec = read(tmp_path)
    assert spec.labels is not None
    assert spec.labels.names == ("a", "b", "c")
    assert spec.warnings == (
        "label_mapping.json contradicts config.json id2label: index 0 is 'b', not 'a'",
    )
    assert "label_mapping.json" not in dict(spec.files)
    write(tmp_path, "config.json", {key: CONFIG[key] for key in CONFIG if key != "id2label"})
    spec = read(tmp_path)
    assert spec.labels is not None
    assert spec.labels.names == ("b", "a", "c")
    assert "label_mapping.json" in dict(spec.files)


def test_an_embedding_model_needs_no_labels(tmp_path: Path) -> None:
    spec = read(make(tmp_path, EMBEDDER | {"id2label": {"9": "x"}}))
    assert spec.labels is None


@pytest.mark.parametrize(
    ("problem", "multi_label"),
    [("multi_label_classification", True), ("single_label_classification", False), (None, False)],
)
def test_the_problem_type_tells_multi_label(
    tmp_path: Path, problem: object, multi_label: bool
) -> None:
    assert read(make(tmp_path, CONFIG | {"problem_type": problem})).multi_label is multi_label


def test_a_regression_may_have_one_value_only(tmp_path: Path) -> None:
    config = CONFIG | {"problem_type": "regression"}
    with pytest.raises(UnsupportedError, match="regression of several values"):
        read(make(tmp_path, config))
    assert read(make(tmp_path, config | {"id2label": {"0": "score"}})).multi_label is False


# Embeddings


def test_an_embedding_model_without_pooling_files_pools_the_mean_with_a_warning(
    tmp_path: Path,
) -> None:
    spec = read(make(tmp_path, EMBEDDER))
    assert spec.pooling == ("pooling_mode_mean_tokens",)
    assert (spec.normalize, spec.embedding_size) == (None, WIDTH)
    assert spec.warnings == (f"{tmp_path.name} has no pooling file; mean pooling is used",)


def test_a_graph_that_pools_needs_no_pooling_and_no_warning(tmp_path: Path) -> None:
    spec = read(make_onnx(tmp_path, EMBEDDER, STATES, POOLED))
    assert spec.output is not None
    assert (spec.output.name, spec.pooling, spec.warnings) == ("sentence_embedding", (), ())
    assert spec.embedding_size == WIDTH


def test_a_projected_vector_may_have_another_width_than_the_hidden_states(tmp_path: Path) -> None:
    make_onnx(tmp_path, EMBEDDER, ("sentence_embedding", 1, ["b", 5]))
    assert read(tmp_path).embedding_size == 5
    write(tmp_path, "1_Pooling/config.json", POOLING)
    with pytest.raises(BadArtifactError, match=r"has width 5, the descriptions say 8"):
        read(tmp_path)


def test_dense_layers_of_the_files_are_applied_to_token_states(tmp_path: Path) -> None:
    make_onnx(tmp_path, EMBEDDER, POOLED, STATES)
    write(tmp_path, "1_Pooling/config.json", POOLING)
    write(tmp_path, "2_Dense/config.json", {"in_features": WIDTH, "out_features": 4})
    write(tmp_path, "2_Dense/model.safetensors", "")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    write(tmp_path, "modules.json", [{"path": path, "type": kinds[path]} for path in kinds])
    spec = read(tmp_path)
    assert spec.output is not None
    assert (spec.output.name, len(spec.dense), spec.embedding_size) == ("last_hidden_state", 1, 4)
    (tmp_path / "model.onnx").write_bytes(onnx_bytes("fp32", [("sentence_embedding", 1, ["b", 4])]))
    spec = read(tmp_path)
    assert (spec.pooling, spec.dense, spec.embedding_size) == ((), (), 4)


def test_states_of_another_width_than_the_config_are_refused(tmp_path: Path) -> None:
    make_onnx(tmp_path, EMBEDDER, ("last_hidden_state", 1, ["b", "t", 9]))
    with pytest.raises(BadArtifactError, match=r"'last_hidden_state' .* width 9, .* say 8"):
        read(tmp_path)


def test_the_graph_tells_a_hidden_size_that_the_config_does_not(tmp_path: Path) -> None:
    config = {key: EMBEDDER[key] for key in EMBEDDER if key != "hidden_size"}
    spec = read(make_onnx(tmp_path, config, STATES))
    assert (spec.hidden_size, spec.embedding_size) == (WIDTH, WIDTH)
    spec = read(make(tmp_path, config | {"dim": 6}, "model.safetensors"))
    assert (spec.hidden_size, spec.embedding_size) == (6, 6)


@pytest.mark.parametrize("key", ["matryoshka_dims", "matryoshka_dimensions"])
def test_dimensions_below_the_native_one_are_listed(tmp_path: Path, key: str) -> None:
    assert read(make(tmp_path, EMBEDDER)).dimensions == ()
    assert read(make(tmp_path, EMBEDDER | {key: [8, 4, 2, 4]})).dimensions == (2, 4)
    for wrong in ([9], [0], [-1], ["4"], [True], [4.0]):
        write(tmp_path, "config.json", EMBEDDER | {key: wrong})
        with pytest.raises(BadArtifactError, match=f"'{key}' must list dimensions from 1 to 8"):
            read(tmp_path)


def test_prompts_and_lower_casing_are_passed_on(tmp_path: Path) -> None:
    make(
        tmp_path,
        EMBEDDER,
        config_sentence_transformers={"prompts": {"q": "Q: "}, "default_prompt_name": "q"},
        sentence_bert_config={"max_seq_length": 100, "do_lower_case": True},
    )
    spec = read(tmp_path)
    assert (dict(spec.prompts), spec.default_prompt_name) == ({"q": "Q: "}, "q")
    assert (spec.lower_case, spec.default_max_tokens) == (True, 100)
    assert {"config_sentence_transformers.json", "sentence_bert_config.json"} <= dict(
        spec.files
    ).keys()


# Lengths and padding


@pytest.mark.parametrize(
    ("tokenizer", "options", "positions", "expected"),
    [
        (64, 100, 128, 64),
        (512, 100, 128, 100),
        (512, None, 128, 128),
        (10**30, None, 512, 512),
        (1e30, 256, 512, 256),
        (None, None, 8192, 8192),
        (64, None, None, 64),
        (None, 300, None, 300),
    ],
)
def test_the_smallest_declared_length_is_the_default(
    tmp_path: Path, tokenizer: object, options: object, positions: int | None, expected: int
) -> None:
    make(
        tmp_path,
        CONFIG | {"max_position_embeddings": positions},
        tokenizer_config={"model_max_length": tokenizer},
        sentence_bert_config={"max_seq_length": options},
    )
    spec = read(tmp_path)
    assert (spec.default_max_tokens, spec.position_limit) == (expected, positions or 0)


def test_a_folder_that_declares_no_length_names_the_three_places(tmp_path: Path) -> None:
    make(tmp_path, CONFIG | {"max_position_embeddings": None})
    with pytest.raises(BadArtifactError) as raised:
        read(tmp_path)
    for place in (
        "model_max_length in tokenizer_config.json",
        "max_seq_length in sentence_bert_config.json",
        "max_position_embeddings in config.json",
    ):
        assert place in raised.value.message


@pytest.mark.parametrize(
    ("family", "padding", "positions"),
    [
        ("bert", 1, 514),
        ("roberta", 1, 512),
        ("xlm-roberta", 1, 512),
        ("roberta", 0, 513),
        ("roberta", None, 512),
        ("camembert", 1, 512),
    ],
)
def test_positions_begin_after_the_padding_in_some_families(
    tmp_path: Path, family: str, padding: int | None, positions: int
) -> None:
    config = {"model_type": family, "max_position_embeddings": 514, "pad_token_id": padding}
    assert read(make(tmp_path, CONFIG | config), families=[family]).position_limit == positions


def test_positions_that_padding_uses_up_are_refused(tmp_path: Path) -> None:
    config = {"model_type": "roberta", "max_position_embeddings": 2, "pad_token_id": 1}
    with pytest.raises(BadArtifactError, match="2 positions leave none beyond pad_token_id 1"):
        read(make(tmp_path, CONFIG | config), families=["roberta"])


@pytest.mark.parametrize(
    ("token", "expected"),
    [("<pad>", "<pad>"), ({"content": "[PAD]", "lstrip": False}, "[PAD]"), (None, None)],
)
def test_the_pad_token_is_given_as_text(
    tmp_path: Path, token: object, expected: str | None
) -> None:
    make(tmp_path, CONFIG | {"pad_token_id": None}, tokenizer_config={"pad_token": token})
    spec = read(tmp_path)
    assert (spec.pad_token_id, spec.pad_token) == (None, expected)


def test_a_pad_token_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError, match=r"tokenizer_config.json: 'pad_token' is not a text"):
        read(make(tmp_path, tokenizer_config={"pad_token": 0}))


@pytest.mark.parametrize(
    ("options", "fed"),
    [
        (None, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "DebertaV2TokenizerFast"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"tokenizer_class": "RobertaTokenizer"}, False),
        ({"tokenizer_class": "RobertaTokenizerFast"}, False),
        ({"tokenizer_class": "XLMRobertaTokenizerFast"}, False),
        (
            {
                "tokenizer_class": "RobertaTokenizer",
                "model_input_names": ["input_ids", "token_type_ids"],
            },
            True,
        ),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}, False),
    ],
)
def test_token_types_are_fed_as_the_tokenizer_class_does(
    tmp_path: Path, options: dict[str, object] | None, fed: bool
) -> None:
    files = {} if options is None else {"tokenizer_config": {"model_max_length": 64} | options}
    assert read(make(tmp_path, **files)).token_types is fed


def test_reading_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "bert-embed-mean", folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    read(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
