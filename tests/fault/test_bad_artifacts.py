"""Model folders through a whole load: broken ones are refused by name, ready ONNX files run."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model
from safetensors.numpy import load_file, save_file

from libsemantic.engine.config import LoadOptions, Precision, RunOptions, Task
from libsemantic.engine.errors import (
    BadArtifactError,
    NotFoundError,
    SemanticError,
    Status,
    UnsupportedError,
)
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
TASKS = {
    "bert-seq": Task.SEQUENCE_CLASSIFICATION,
    "bert-token": Task.TOKEN_CLASSIFICATION,
    "bert-embed-mean": Task.EMBEDDING,
}
WEIGHTS = "model.safetensors"
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]
Spoil: TypeAlias = Callable[[Path], object]
TEXTS = ["math law", "机器学习模型", "The router picks a model for each request"]


@pytest.fixture
def quiet(registry: Registry) -> list[str]:
    """Collect the lines of the log."""
    lines: list[str] = []
    registry.log.send_to(lambda _, line: lines.append(line))
    return lines


# Ways to spoil a folder


def write(name: str, content: str | bytes) -> Spoil:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def merge(name: str, **changes: object) -> Spoil:
    """Change keys of a JSON file; None takes a key out."""

    def spoil(folder: Path) -> None:
        merged = json.loads((folder / name).read_text()) | changes
        kept = {key: value for key, value in merged.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return spoil


def remove(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def cut(name: str, count: int) -> Spoil:
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-count])

    return spoil


def tensors(change: Callable[[dict[str, NDArray[np.float32]]], object]) -> Spoil:
    """Change the tensors of the weight file."""

    def spoil(folder: Path) -> None:
        table = load_file(folder / WEIGHTS)
        change(table)
        save_file(table, folder / WEIGHTS)

    return spoil


def both(*spoils: Spoil) -> Spoil:
    def spoil(folder: Path) -> None:
        for each in spoils:
            each(folder)

    return spoil


def replace_by(name: str, make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


def names(count: int) -> dict[str, str]:
    return {str(index): f"label {index}" for index in range(count)}


def poisoned(table: dict[str, NDArray[np.float32]]) -> None:
    table["classifier.bias"] = np.full(7, np.nan, np.float32)


def enlarged(table: dict[str, NDArray[np.float32]]) -> None:
    table["classifier.weight"] = np.zeros((14, 64), np.float32)
    table["classifier.bias"] = np.zeros(14, np.float32)


def with_more_tokens(folder: Path, *, added: bool = False, template: bool = False) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    if added:
        content["added_tokens"].append({"id": 664, "content": "surplus", **flags})
    else:
        content["model"]["vocab"]["surplus"] = 664
    if template:
        content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [664]
    path.write_text(json.dumps(content))


BIAS = "bert.encoder.layer.1.output.dense.bias"
CASES: dict[str, tuple[Spoil, type[SemanticError], str]] = {
    "no folder": (shutil.rmtree, NotFoundError, r"cannot be opened.*give the folder of a model"),
    "no config": (
        remove("config.json"),
        NotFoundError,
        r"has no config.json; a model folder needs",
    ),
    "no tokenizer": (
        remove("tokenizer.json"),
        NotFoundError,
        r"has no tokenizer.json; .*tokenizer.save_pretrained",
    ),
    "no weights": (remove(WEIGHTS), NotFoundError, r"has no weights; looked for model.safetensors"),
    "only a pickle": (
        both(remove(WEIGHTS), write("pytorch_model.bin", b"\x80\x02}q\x00.")),
        BadArtifactError,
        r"only as a pickle \(pytorch_model.bin\), which can run code; .*safe_serialization",
    ),
    "a missing weight": (tensors(lambda table: table.pop(BIAS)), BadArtifactError, rf"{BIAS}"),
    "a misshapen weight": (
        tensors(lambda table: table.update({BIAS: np.zeros(65, np.float32)})),
        BadArtifactError,
        rf"{BIAS}.*65.*64",
    ),
    "an unknown weight": (
        tensors(lambda table: table.update({"bert.surplus": np.zeros(3, np.float32)})),
        BadArtifactError,
        r"bert\.surplus",
    ),
    "14 outputs, 13 labels": (
        both(tensors(enlarged), merge("config.json", id2label=names(13), label2id=None)),
        BadArtifactError,
        r"'id2label' states 13 labels.*'classifier.weight'.*\[14, 64\]",
    ),
    "7 outputs, 14 labels": (
        merge("config.json", id2label=names(14), label2id=None),
        BadArtifactError,
        r"'id2label' states 14 labels.*'classifier.weight'.*\[7, 64\]",
    ),
    "no labels": (
        merge("config.json", id2label=None, label2id=None),
        BadArtifactError,
        r"neither id2label nor label2id.*add id2label to config.json",
    ),
    "a hole in the labels": (
        merge("config.json", id2label=names(6) | {"7": "x"}, label2id=None),
        BadArtifactError,
        r"'id2label' has 7 names but none for index 6; add id2label",
    ),
    "label files at odds": (
        both(
            merge("config.json", id2label=None, label2id=None),
            write("label_mapping.json", json.dumps({"id_to_label": names(7)})),
            write("labels.json", json.dumps([f"label {6 - index}" for index in range(7)])),
        ),
        BadArtifactError,
        r"labels.json contradicts label_mapping.json.*index 0 is 'label 6', not 'label 0'",
    ),
    "an unknown family": (
        merge("config.json", model_type="perceiver"),
        UnsupportedError,
        r"model_type 'perceiver' cannot be built from model.safetensors; known are bert",
    ),
    "no family": (
        merge("config.json", model_type=None),
        BadArtifactError,
        r"'model_type' is missing; model.safetensors needs it",
    ),
    "an unknown architecture": (
        merge("config.json", architectures=["BertForMaskedLM"]),
        UnsupportedError,
        r"architecture 'BertForMaskedLM' is not supported; supported are",
    ),
    "a variant of the family": (
        merge("config.json", position_embedding_type="relative_key"),
        UnsupportedError,
        r"position_embedding_type 'relative_key' is not supported; only 'absolute' is",
    ),
    "more layers than weights": (
        merge("config.json", num_hidden_layers=4),
        BadArtifactError,
        r"'num_hidden_layers' is 4, the weights hold 3 layers",
    ),
    "another hidden size": (merge("config.json", hidden_size=32), BadArtifactError, r"32"),
    "damaged config": (
        write("config.json", '{"model_type": "bert", '),
        BadArtifactError,
        r"config.json is damaged JSON: .*fetch the file again",
    ),
    "binary config": (
        write("config.json", b"\x80\x81\x82"),
        BadArtifactError,
        r"config.json is damaged JSON",
    ),
    "a list for a config": (
        write("config.json", "[]"),
        BadArtifactError,
        r"config.json does not hold a JSON object; fetch the file again",
    ),
    "damaged tokenizer": (
        cut("tokenizer.json", 100),
        BadArtifactError,
        r"tokenizer.json is damaged \(.*\); fetch it again",
    ),
    "empty tokenizer": (
        write("tokenizer.json", ""),
        BadArtifactError,
        r"tokenizer.json is damaged",
    ),
    "damaged tokenizer config": (
        write("tokenizer_config.json", "nonsense"),
        BadArtifactError,
        r"tokenizer_config.json is damaged JSON",
    ),
    "a tokenizer of another model": (
        with_more_tokens,
        BadArtifactError,
        r"token ids up to 664, the model has 664 embeddings; use the tokenizer that belongs",
    ),
    "a template beyond the model": (
        partial(with_more_tokens, added=True, template=True),
        BadArtifactError,
        r"token ids up to 664, the model has 664 embeddings; use the tokenizer that belongs",
    ),
    "weights cut short": (cut(WEIGHTS, 1), BadArtifactError, rf"{WEIGHTS} is cut short"),
    "empty weights": (write(WEIGHTS, b""), BadArtifactError, r"0 bytes, too few for safetensors"),
    "a pointer to weights": (
        write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        BadArtifactError,
        r"is a Git LFS pointer, not the weights; run git lfs pull",
    ),
    "a folder for weights": (
        replace_by(WEIGHTS, lambda path: path.mkdir()),
        BadArtifactError,
        r"not a regular file",
    ),
    "a pipe for a config": (
        replace_by("config.json", os.mkfifo),
        BadArtifactError,
        r"config.json is not a regular file; put the file itself there",
    ),
    "a link to nothing": (
        replace_by("tokenizer.json", lambda path: path.symlink_to("/nonexistent/tokenizer")),
        NotFoundError,
        r"tokenizer.json is a link to nothing; fetch the file again",
    ),
    "a missing shard": (
        both(
            remove(WEIGHTS),
            write(f"{WEIGHTS}.index.json", json.dumps({"weight_map": {"a": "x.safetensors"}})),
        ),
        NotFoundError,
        r"x.safetensors is missing, model.safetensors.index.json lists it; fetch it too",
    ),
    "weights that are no numbers": (
        tensors(poisoned),
        BadArtifactError,
        r"NaN or infinity; the weights are damaged.*FP32",
    ),
    "a modules file that is none": (
        write("modules.json", '{"a": 1}'),
        BadArtifactError,
        r"modules.json does not hold a list of objects; fetch the file again",
    ),
    "an unknown problem": (
        merge("config.json", problem_type="ranking"),
        BadArtifactError,
        r"'problem_type' is 'ranking'; it is one of",
    ),
}


@pytest.mark.parametrize(("spoil", "error", "message"), CASES.values(), ids=CASES)
def test_a_broken_folder_is_refused_by_name(
    registry: Registry,
    copy_golden: CopyGolden,
    quiet: list[str],
    capfd: pytest.CaptureFixture[str],
    spoil: Spoil,
    error: type[SemanticError],
    message: str,
) -> None:
    folder = copy_golden("bert-seq", {})
    spoil(folder)
    options = LoadOptions(name="it")
    for _ in range(2):  # the second time as well
        with pytest.raises(error, match=message) as caught:
            registry.load(str(folder), options)
        assert type(caught.value) is error
        assert "\n" not in caught.value.message
        assert registry.list_models().count == 0
        assert registry.stats().call_count == 0
    assert quiet == []
    assert capfd.readouterr() == ("", "")
    handle = registry.load(str(GOLDEN / "bert-seq"), options)
    assert registry.classify(handle, TEXTS).rows.status == (0, 0, 0)


def test_a_folder_that_is_mended_loads(registry: Registry, copy_golden: CopyGolden) -> None:
    folder = copy_golden("bert-seq", {})
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    for _ in range(2):
        with pytest.raises(NotFoundError):
            registry.load(str(folder))
    (folder / WEIGHTS).write_bytes(weights)
    handle = registry.load(str(folder))
    assert registry.classify(handle, ["math"]).rows.status == (0,)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            write("1_Pooling/config.json", "{}"),
            BadArtifactError,
            r"1_Pooling/config.json: 'word_embedding_dimension' is missing",
        ),
        (
            merge("1_Pooling/config.json", word_embedding_dimension=65),
            BadArtifactError,
            r"'word_embedding_dimension' is 65, hidden_size of config.json is 64",
        ),
        (remove("1_Pooling/config.json"), NotFoundError, r"1_Pooling/config.json is missing"),
        (
            merge("config.json", matryoshka_dims=[128]),
            BadArtifactError,
            r"'matryoshka_dims' must list dimensions from 1 to 64",
        ),
        (
            write("modules.json", json.dumps([{"type": "Transformer"}, {"type": "x.CNN"}])),
            UnsupportedError,
            r"module 'x.CNN'; supported are",
        ),
        (
            write("config_sentence_transformers.json", '{"default_prompt_name": "q"}'),
            BadArtifactError,
            r"'default_prompt_name' is 'q', 'prompts' has nothing",
        ),
        (
            write("modules.json", json.dumps([{"type": "Transformer", "path": "../.."}])),
            BadArtifactError,
            r"'path' is '../..'; it must stay in the folder",
        ),
    ],
)
def test_a_broken_embedding_folder_is_refused_by_name(
    registry: Registry,
    copy_golden: CopyGolden,
    spoil: Spoil,
    error: type[SemanticError],
    message: str,
) -> None:
    folder = copy_golden("bert-embed-mean", {})
    spoil(folder)
    with pytest.raises(error, match=message):
        registry.load(str(folder))
    assert registry.list_models().count == 0


# What is odd, but not broken


def test_of_contradicting_labels_the_config_wins(
    registry: Registry, copy_golden: CopyGolden, quiet: list[str]
) -> None:
    table = json.loads((GOLDEN / "bert-seq" / "config.json").read_text())["id2label"]
    right = [table[str(index)] for index in range(7)]
    turned = {str(index): name for index, name in enumerate(reversed(right))}
    folder = copy_golden("bert-seq", {"label_mapping.json": {"id_to_label": turned}})
    handle = registry.load(str(folder))
    info = registry.info(handle)
    assert list(info.labels) == right
    (warning,) = info.warnings
    assert "label_mapping.json contradicts config.json id2label" in warning
    assert "index 0 is 'other', not 'biology'" in warning
    assert [line for line in quiet if warning in line]
    plain = registry.load(str(GOLDEN / "bert-seq"))
    ours, theirs = registry.classify(handle, TEXTS), registry.classify(plain, TEXTS)
    np.testing.assert_array_equal(ours.label_index, theirs.label_index)
    assert ours.labels == theirs.labels
    assert registry.info(plain).warnings == ()


def test_a_contradicting_label2id_is_warned_of(
    registry: Registry, copy_golden: CopyGolden, quiet: list[str]
) -> None:
    changed = {f"other {index}": index for index in range(7)}
    folder = copy_golden("bert-seq", {"config.json": {"label2id": changed}})
    info = registry.info(registry.load(str(folder)))
    assert info.labels[0] == "biology"
    assert "label2id contradicts id2label" in info.warnings[0]
    assert len(quiet) == 1


def test_labels_may_come_from_a_file_alone(
    registry: Registry, copy_golden: CopyGolden, quiet: list[str]
) -> None:
    changes = {
        "config.json": {"id2label": None, "label2id": None},
        "label_mapping.json": {"label_to_idx": {f"n{6 - i}": i for i in range(7)}},
    }
    info = registry.info(registry.load(str(copy_golden("bert-seq", changes))))
    assert info.labels == tuple(f"n{6 - index}" for index in range(7))
    assert "label_mapping.json" in info.file_names
    assert len(quiet) == 1


def test_weights_may_come_in_shards_and_through_links(
    registry: Registry, copy_golden: CopyGolden, tmp_path: Path
) -> None:
    folder = copy_golden("bert-seq", {})
    table = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    weight_map: dict[str, str] = {}
    for number, chosen in enumerate((sorted(table)[:20], sorted(table)[20:])):
        shard = f"model-0000{number}.safetensors"
        save_file({name: table[name] for name in chosen}, blobs / f"blob{number}")
        (folder / shard).symlink_to(blobs / f"blob{number}")
        weight_map |= dict.fromkeys(chosen, shard)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    try:
        handle = registry.load(str(folder))
    except UnsupportedError as error:  # weights in several folders
        pytest.fail(error.message)
    expected = registry.classify(registry.load(str(GOLDEN / "bert-seq")), TEXTS)
    np.testing.assert_array_equal(registry.classify(handle, TEXTS).logits, expected.logits)
    assert "model-00001.safetensors" in registry.info(handle).file_names


# Ready ONNX files


def inlined(name: str) -> onnx.ModelProto:
    """Return a golden model's graph with its weights inside."""
    folder = GOLDEN / name
    config = json.loads((folder / "config.json").read_text())
    graph = build_graph(config, TASKS[name], read_weights(folder))
    built = onnx.load_model_from_string(graph.model)
    load_external_data_for_model(built, str(graph.weights_folder))
    for tensor in built.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return built


def folder_for(copy_golden: CopyGolden, name: str, changes: Mapping[str, object]) -> Path:
    """Copy a golden folder without its weights."""
    folder = copy_golden(name, changes)
    (folder / WEIGHTS).unlink()
    return folder


def save(model: onnx.ModelProto, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())


def check_same(registry: Registry, name: str, folder: Path, options: LoadOptions) -> int:
    """Check that a folder answers like the golden model, alone and in a batch."""
    golden, handle = registry.load(str(GOLDEN / name)), registry.load(str(folder), options)
    for texts in (TEXTS, TEXTS[:1]):
        if TASKS[name] is Task.SEQUENCE_CLASSIFICATION:
            ours = registry.classify(handle, texts).logits
            theirs = registry.classify(golden, texts).logits
        elif TASKS[name] is Task.EMBEDDING:
            ours = registry.embed(handle, texts).values
            theirs = registry.embed(golden, texts).values
        else:
            found = registry.classify_tokens(handle, texts)
            expected = registry.classify_tokens(golden, texts)
            assert found.start.tolist() == expected.start.tolist()
            ours, theirs = found.score, expected.score
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
        assert len(ours) > 0
    return handle


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx", "onnx/odd-name.onnx"])
@pytest.mark.parametrize("name", TASKS)
def test_a_ready_file_answers_like_the_weights(
    registry: Registry, copy_golden: CopyGolden, name: str, place: str
) -> None:
    folder = folder_for(copy_golden, name, {})
    save(inlined(name), folder / place)
    handle = check_same(registry, name, folder, LoadOptions(name="ready"))
    info = registry.info(handle)
    assert (info.source, info.dtype) == ("onnx", "fp32")
    assert place in info.file_names
    assert info.mapped_bytes == (folder / place).stat().st_size
    assert info.position_limit == 128
    assert registry.load(str(folder), LoadOptions(name="fp32", precision=Precision.FP32))


def test_safetensors_come_before_a_ready_file(registry: Registry, copy_golden: CopyGolden) -> None:
    folder = copy_golden("bert-seq", {})
    save(inlined("bert-seq"), folder / "model.onnx")
    assert registry.info(registry.load(str(folder))).source == "safetensors"


@pytest.mark.parametrize(
    ("seen", "said", "stated"),
    [
        (True, 664, 664),
        (True, 250_000, 664),
        (True, "many", 664),
        (True, None, 664),
        (False, 250_000, 250_000),  # of an unseen table only the configuration tells
        (False, "many", None),
        (False, 700.5, None),
        (False, None, None),
    ],
)
def test_the_vocabulary_is_that_of_the_table(
    registry: Registry,
    copy_golden: CopyGolden,
    seen: bool,
    said: object,
    stated: int | None,
) -> None:
    model = inlined("bert-seq")
    if not seen:  # the ids go through arithmetic, so that their table is not known for it
        for node in model.graph.node:
            node.input[:] = ["ids" if name == "input_ids" else name for name in node.input]
        model.graph.initializer.append(helper.make_tensor("nothing", TensorProto.INT64, [], [0]))
        model.graph.node.insert(0, helper.make_node("Add", ["input_ids", "nothing"], ["ids"]))
    folder = folder_for(copy_golden, "bert-seq", {"config.json": {"vocab_size": said}})
    save(model, folder / "model.onnx")
    info = json.loads(registry.info(registry.load(str(folder))).json)
    assert info["vocab_size"] == stated
    assert info["device"] == "cpu"


def test_weights_state_their_vocabulary(registry: Registry) -> None:
    info = json.loads(registry.info(registry.load(str(GOLDEN / "bert-token"))).json)
    assert info["vocab_size"] == 718


def test_another_family_runs_from_a_ready_file(registry: Registry, copy_golden: CopyGolden) -> None:
    folder = folder_for(copy_golden, "bert-seq", {"config.json": {"model_type": "perceiver"}})
    save(inlined("bert-seq"), folder / "model.onnx")
    handle = check_same(registry, "bert-seq", folder, LoadOptions(name="other"))
    assert registry.info(handle).family == "perceiver"


def test_inputs_of_32_bits_are_fed(registry: Registry, copy_golden: CopyGolden) -> None:
    model = inlined("bert-seq")
    casts = []
    for value in model.graph.input:
        value.type.tensor_type.elem_type = TensorProto.INT32
        casts.append(helper.make_node("Cast", [value.name], [f"{value.name}64"], to=7))
        for node in model.graph.node:
            for index, used in enumerate(node.input):
                if used == value.name:
                    node.input[index] = f"{value.name}64"
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    folder = folder_for(copy_golden, "bert-seq", {})
    save(model, folder / "model.onnx")
    check_same(registry, "bert-seq", folder, LoadOptions(name="int32"))


def test_inputs_that_a_model_does_not_take_are_left_out(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    model = inlined("bert-seq")
    (types,) = [value for value in model.graph.input if value.name == "token_type_ids"]
    model.graph.input.remove(types)
    zeros = helper.make_node("Sub", ["input_ids", "input_ids"], ["token_type_ids"])
    model.graph.node.insert(0, zeros)
    folder = folder_for(copy_golden, "bert-seq", {})
    save(model, folder / "model.onnx")
    check_same(registry, "bert-seq", folder, LoadOptions(name="two inputs"))


def rename_output(model: onnx.ModelProto, new: str) -> str:
    """Rename the only output; return its old name."""
    (output,) = model.graph.output
    old: str = output.name
    for node in model.graph.node:
        for index, made in enumerate(node.output):
            if made == old:
                node.output[index] = new
        for index, used in enumerate(node.input):
            if used == old:
                node.input[index] = new
    output.name = new
    return old


@pytest.mark.parametrize("name", TASKS)
def test_the_output_is_chosen_by_its_rank(
    registry: Registry, copy_golden: CopyGolden, name: str
) -> None:
    model = inlined(name)
    rename_output(model, "463")
    # As exporters leave them: the ids first, then something of another rank.
    ids = helper.make_tensor_value_info("ids", TensorProto.FLOAT, ["batch", "tokens"])
    other = helper.make_tensor_value_info("461", TensorProto.FLOAT, ["a", "b", "c", 5])
    zeros = numpy_helper.from_array(np.zeros((1, 1, 1, 5), np.float32), "zeros")
    model.graph.initializer.append(zeros)
    model.graph.node.append(helper.make_node("Identity", ["zeros"], ["461"]))
    outputs = [other, *model.graph.output]
    if TASKS[name] is not Task.SEQUENCE_CLASSIFICATION:
        model.graph.node.append(helper.make_node("Cast", ["input_ids"], ["ids"], to=1))
        outputs.insert(0, ids)
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    folder = folder_for(copy_golden, name, {})
    save(model, folder / "model.onnx")
    check_same(registry, name, folder, LoadOptions(name="by rank"))


def test_two_outputs_that_fit_are_not_guessed_between(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    model = inlined("bert-seq")
    rename_output(model, "a")
    model.graph.node.append(helper.make_node("Neg", ["a"], ["b"]))
    twin = onnx.ValueInfoProto()
    twin.CopyFrom(model.graph.output[0])
    twin.name = "b"
    model.graph.output.append(twin)
    folder = folder_for(copy_golden, "bert-seq", {})
    save(model, folder / "model.onnx")
    with pytest.raises(BadArtifactError, match=r"no single output.*'a'.*'b'.*name it 'logits'"):
        registry.load(str(folder))


def test_a_vector_that_is_pooled_already_is_taken_as_it_is(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    model = inlined("bert-embed-mean")
    states = rename_output(model, "token_embeddings")
    assert states == "last_hidden_state"
    pooled = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 64])
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    node = helper.make_node(
        "ReduceMax", ["token_embeddings", "axis"], ["sentence_embedding"], keepdims=0
    )
    model.graph.initializer.append(axis)
    model.graph.node.append(node)
    model.graph.output.append(pooled)
    folder = folder_for(copy_golden, "bert-embed-mean", {})
    save(model, folder / "model.onnx")
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    changes = {"1_Pooling/config.json": flags}
    expected = registry.load(str(copy_golden("bert-embed-mean", changes)))
    handle = registry.load(str(folder))
    for text in TEXTS:
        ours, theirs = registry.embed(handle, [text]), registry.embed(expected, [text])
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-5)


def external(folder: Path, location: str = "weights.bin") -> Path:
    path = folder / "model.onnx"
    onnx.save_model(
        inlined("bert-seq"), path, save_as_external_data=True, location=location, size_threshold=0
    )
    return folder / location


def test_weights_may_lie_beside_the_file(registry: Registry, copy_golden: CopyGolden) -> None:
    folder = folder_for(copy_golden, "bert-seq", {})
    data = external(folder)
    handle = check_same(registry, "bert-seq", folder, LoadOptions(name="beside"))
    info = registry.info(handle)
    assert {"model.onnx", "weights.bin"} <= set(info.file_names)
    assert info.mapped_bytes > data.stat().st_size


def test_external_weights_that_are_missing_or_cut_are_named(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    folder = folder_for(copy_golden, "bert-seq", {})
    data = external(folder)
    content = data.read_bytes()
    data.unlink()
    with pytest.raises(NotFoundError, match=r"model.onnx needs 'weights.bin' beside it; fetch"):
        registry.load(str(folder))
    data.write_bytes(content[:-1])
    with pytest.raises(BadArtifactError, match=r"of 'weights.bin'.*fetch both again"):
        registry.load(str(folder))
    assert registry.list_models().count == 0


def test_a_damaged_file_is_refused(
    registry: Registry, copy_golden: CopyGolden, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = inlined("bert-seq").SerializeToString()
    folder = folder_for(copy_golden, "bert-seq", {})
    for data in (whole[:-1], whole[: len(whole) // 2], b"", b"no ONNX"):
        (folder / "model.onnx").write_bytes(data)
        with pytest.raises(BadArtifactError, match=r"model.onnx.*fetch it again"):
            registry.load(str(folder))
    assert registry.list_models().count == 0
    assert capfd.readouterr() == ("", "")


def test_operators_that_are_not_there_are_named(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    model = inlined("bert-seq")
    old = rename_output(model, "before")
    model.graph.node.append(helper.make_node("Magic", ["before"], [old], domain="com.example"))
    model.graph.output[0].name = old
    folder = folder_for(copy_golden, "bert-seq", {})
    save(model, folder / "model.onnx")
    with pytest.raises(UnsupportedError, match=r"custom operator 'com.example::Magic'"):
        registry.load(str(folder))


def test_a_head_of_another_width_is_refused(registry: Registry, copy_golden: CopyGolden) -> None:
    changes = {"config.json": {"id2label": names(6), "label2id": None}}
    folder = folder_for(copy_golden, "bert-seq", changes)
    save(inlined("bert-seq"), folder / "model.onnx")
    with pytest.raises(BadArtifactError, match=r"the head has 7 outputs.*the labels are 6"):
        registry.load(str(folder))
    # Even where the file keeps its width to itself.
    model = inlined("bert-seq")
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "labels"
    save(model, folder / "model.onnx")
    with pytest.raises(BadArtifactError, match=r"the head has 7 outputs.*the labels are 6"):
        registry.load(str(folder))


# Outputs that are no numbers


def poison(model: onnx.ModelProto, trigger: int, value: float) -> None:
    """Spoil the outputs of each text that holds a token."""
    old = rename_output(model, "clean")
    rank = len(model.graph.output[0].type.tensor_type.shape.dim)
    model.graph.output[0].name = old
    shape = [-1, *[1] * (rank - 1)]
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(trigger, np.int64), "trigger"),
            numpy_helper.from_array(np.array([1], np.int64), "over tokens"),
            numpy_helper.from_array(np.array(shape, np.int64), "per row"),
            numpy_helper.from_array(np.array(value, np.float32), "poison"),
        ]
    )
    model.graph.node.extend(
        [
            helper.make_node("Equal", ["input_ids", "trigger"], ["hits"]),
            helper.make_node("Cast", ["hits"], ["hits int"], to=TensorProto.INT64),
            helper.make_node("ReduceMax", ["hits int", "over tokens"], ["hit"]),
            helper.make_node("Cast", ["hit"], ["hit bool"], to=TensorProto.BOOL),
            helper.make_node("Reshape", ["hit bool", "per row"], ["hit row"]),
            helper.make_node("Where", ["hit row", "poison", "clean"], [old]),
        ]
    )


def token_of(name: str, word: str) -> int:
    vocabulary = json.loads((GOLDEN / name / "tokenizer.json").read_text())["model"]["vocab"]
    number: int = vocabulary[word]
    return number


@pytest.mark.parametrize("settings", ["print", "raise"])
def test_numbers_that_overflow_fail_their_row_in_silence(
    registry: Registry,
    copy_golden: CopyGolden,
    capfd: pytest.CaptureFixture[str],
    settings: Literal["print", "raise"],
) -> None:
    """Whatever the host has told numpy to do: its settings hold for each thread."""
    model = inlined("bert-embed-mean")
    poison(model, token_of("bert-embed-mean", "math"), 3.3e38)
    folder = folder_for(copy_golden, "bert-embed-mean", {})
    save(model, folder / "model.onnx")
    with np.errstate(all=settings):
        handle = registry.load(str(folder))
        answer = registry.embed(handle, ["law code", "math code"])
        assert np.geterr()["over"] == settings
    assert answer.rows.status == (Status.OK, Status.BAD_ARTIFACT)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", TASKS)
def test_a_row_without_numbers_fails_alone(
    registry: Registry, copy_golden: CopyGolden, name: str, value: float
) -> None:
    model = inlined(name)
    poison(model, token_of(name, "math"), value)
    folder = folder_for(copy_golden, name, {})
    save(model, folder / "model.onnx")
    handle = registry.load(str(folder), LoadOptions(name="poisoned"))
    golden = registry.load(str(GOLDEN / name))
    texts = ["law code", "math code", "code law"]
    good = (Status.OK, Status.BAD_ARTIFACT, Status.OK)
    if TASKS[name] is Task.SEQUENCE_CLASSIFICATION:
        result = registry.classify(handle, texts)
        expected = registry.classify(golden, texts)
        assert np.isnan(result.probabilities[1]).all()
        assert np.isnan(result.logits[1]).all()
        first, _, last = expected.label_index.tolist()
        assert result.label_index.tolist() == [first, -1, last]
        np.testing.assert_allclose(result.logits[[0, 2]], expected.logits[[0, 2]], atol=1e-5)
        rows = result.rows
        with pytest.raises(BadArtifactError, match="NaN or infinity") as caught:
            registry.classify(handle, texts[1:2])
    elif TASKS[name] is Task.EMBEDDING:
        for options in (None, RunOptions()):
            vectors = registry.embed(handle, texts, options)
            others = registry.embed(golden, texts, options)
            assert np.isnan(vectors.values[1]).all()
            np.testing.assert_allclose(vectors.values[[0, 2]], others.values[[0, 2]], atol=1e-5)
        rows = vectors.rows
        with pytest.raises(BadArtifactError, match="NaN or infinity") as caught:
            registry.embed(handle, texts[1:2])
    else:
        found = registry.classify_tokens(handle, texts)
        others_found = registry.classify_tokens(golden, texts)
        assert 1 not in found.row
        assert found.row_start[1] == found.row_start[2]
        keep = others_found.row != 1
        assert found.start.tolist() == others_found.start[keep].tolist()
        rows = found.rows
        with pytest.raises(BadArtifactError, match="NaN or infinity") as caught:
            registry.classify_tokens(handle, texts[1:2])
    assert rows.status == good
    assert rows.token_count[1] == 0
    assert "FP32" in rows.message[1]
    assert caught.value.input_index == 0


def test_a_model_without_numbers_fails_its_self_test(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    model = inlined("bert-seq")
    poison(model, token_of("bert-seq", "[CLS]"), float("nan"))
    folder = folder_for(copy_golden, "bert-seq", {})
    save(model, folder / "model.onnx")
    with pytest.raises(BadArtifactError, match="NaN or infinity"):
        registry.load(str(folder))
    assert registry.list_models().count == 0
