"""What sentence-transformers files say, in their old and their new form."""

import json
from pathlib import Path

import pytest

from libsemantic.engine.errors import BadArtifactError, NotFoundError, UnsupportedError
from libsemantic.engine.postprocess import POOLING_MODES
from libsemantic.engine.sentence_transformers import (
    Dense,
    EmbeddingHead,
    Module,
    check_transformer_options,
    has_pooling,
    read_embedding_head,
    read_modules,
    read_transformer_options,
    transformer_folder,
)

WIDTH = 64
OLD = "sentence_transformers.models."
MEAN = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
DENSE = {"in_features": WIDTH, "out_features": 32}
CHAIN = ("Transformer", "Pooling")


def write(folder: Path, name: str, content: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_chain(folder: Path, *kinds: str, prefix: str = OLD) -> None:
    """Write modules.json: the transformer in the root, every other step in ``<number>_<kind>``."""
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": prefix + kind}
        for i, kind in enumerate(kinds)
    ]
    write(folder, "modules.json", modules)


def head_of(folder: Path, hidden_size: int = WIDTH) -> EmbeddingHead:
    return read_embedding_head(folder, read_modules(folder), hidden_size)


def pooled(folder: Path, config: object, hidden_size: int = WIDTH) -> EmbeddingHead:
    write_chain(folder, *CHAIN)
    write(folder, "1_Pooling/config.json", config)
    return head_of(folder, hidden_size)


def with_dense(folder: Path, *configs: object) -> EmbeddingHead:
    write_chain(folder, *CHAIN, *["Dense"] * len(configs))
    write(folder, "1_Pooling/config.json", MEAN)
    for number, config in enumerate(configs, 2):
        write(folder, f"{number}_Dense/config.json", config)
        (folder / f"{number}_Dense" / "model.safetensors").touch()
    return head_of(folder)


# modules.json


@pytest.mark.parametrize(
    "prefix",
    [OLD, "sentence_transformers.sentence_transformer.modules.pooling.", ""],
)
def test_modules_are_known_by_the_last_part_of_their_type(tmp_path: Path, prefix: str) -> None:
    write_chain(tmp_path, *CHAIN, "Normalize", prefix=prefix)
    assert read_modules(tmp_path) == (
        Module("Transformer", ""),
        Module("Pooling", "1_Pooling"),
        Module("Normalize", "2_Normalize"),
    )


@pytest.mark.parametrize("kind", ["custom_st.Transformer", "custom_st.Pooling", "a.b.Normalize"])
def test_modules_of_another_package_are_not_taken_for_known_ones(tmp_path: Path, kind: str) -> None:
    last = kind.rpartition(".")[2]
    modules = [{"type": OLD + name, "path": name} for name in (*CHAIN, "Normalize")]
    modules = [entry | {"type": kind} if entry["path"] == last else entry for entry in modules]
    write(tmp_path, "modules.json", modules)
    found = read_modules(tmp_path)

    def read() -> None:
        transformer_folder(tmp_path, found)
        head_of(tmp_path)

    with pytest.raises(UnsupportedError, match=f"a module '{kind}'; supported"):
        read()


# What sentence-transformers 6 writes.
PLAIN: dict[str, object] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    "processing_kwargs": {"text": {"padding": True}, "image": {"size": 7}},
}


@pytest.mark.parametrize(
    ("changed", "always"),
    [
        ({"transformer_task": "fill-mask"}, False),
        ({"module_output_name": "sentence_embedding"}, False),
        ({"modality_config": {"text": {"method_output_name": "pooler_output"}}}, False),
        ({"modality_config": {"message": {"method": "forward"}}}, False),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, True),
        ({"processing_kwargs": {"common": {"max_length": 5}}}, True),
        ({"processing_kwargs": {"text": 1}}, True),
    ],
)
def test_options_that_change_tokens_or_states_are_refused(
    tmp_path: Path, changed: dict[str, object], always: bool
) -> None:
    write(tmp_path, "sentence_bert_config.json", PLAIN)
    options = read_transformer_options(tmp_path)
    assert options is not None
    check_transformer_options(options, embeds=True)
    write(tmp_path, "sentence_bert_config.json", PLAIN | changed)
    options = read_transformer_options(tmp_path)
    assert options is not None
    with pytest.raises(
        UnsupportedError, match=f"sentence_bert_config.json: '{next(iter(changed))}"
    ):
        check_transformer_options(options, embeds=True)
    if not always:
        check_transformer_options(options, embeds=False)


def test_a_folder_without_modules_has_none(tmp_path: Path) -> None:
    assert read_modules(tmp_path) is None
    assert transformer_folder(tmp_path, None) == tmp_path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "does not hold a list of objects"),
        (None, "does not hold a list of objects"),
        (["Transformer"], "does not hold a list of objects"),
        ([{"path": ""}], "'type' is missing"),
        ([{"type": 1}], "'type' is not a text"),
        ([{"type": "Transformer", "path": 0}], "'path' is not a text"),
        ([{"type": "Transformer", "path": "../other"}], "'path' is '../other'; it must stay"),
        ([{"type": "Transformer", "path": "/etc"}], "it must stay in the folder"),
        ([{"type": "Transformer", "path": "a\0b"}], "it must stay in the folder"),
    ],
)
def test_damaged_modules_are_refused(tmp_path: Path, content: object, reason: str) -> None:
    write(tmp_path, "modules.json", content)
    with pytest.raises(BadArtifactError) as raised:
        read_modules(tmp_path)
    assert "modules.json" in raised.value.message
    assert reason in raised.value.message


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", [{"path": "0_Transformer", "type": OLD + "Transformer"}])
    folder = transformer_folder(tmp_path, read_modules(tmp_path))
    assert folder == tmp_path / "0_Transformer"


def test_a_chain_that_begins_with_anything_else_is_not_supported(tmp_path: Path) -> None:
    write_chain(tmp_path, "StaticEmbedding", "Normalize")
    with pytest.raises(UnsupportedError, match="begins with a module 'StaticEmbedding'"):
        transformer_folder(tmp_path, read_modules(tmp_path))


@pytest.mark.parametrize("kind", ["LSTM", "WordWeights", "Dropout", "LayerNorm", "pooling"])
def test_an_unknown_module_is_named(tmp_path: Path, kind: str) -> None:
    write_chain(tmp_path, *CHAIN, kind)
    with pytest.raises(UnsupportedError, match=f"a module '{kind}'; supported are Transformer"):
        head_of(tmp_path)


@pytest.mark.parametrize(
    "kinds",
    [
        (),
        ("Transformer",),
        ("Pooling", "Transformer"),
        ("Transformer", "Normalize"),
        ("Transformer", "Dense", "Pooling"),
        (*CHAIN, "Pooling"),
        (*CHAIN, "Normalize", "Dense"),
        (*CHAIN, "Normalize", "Normalize"),
    ],
)
def test_steps_in_another_order_are_not_supported(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    write_chain(tmp_path, *kinds)
    order = " ".join(kinds) or "nothing"
    with pytest.raises(UnsupportedError, match=rf"modules.json lists {order}; supported is"):
        head_of(tmp_path)


@pytest.mark.parametrize(("kinds", "expected"), [(CHAIN, False), ((*CHAIN, "Normalize"), True)])
def test_modules_say_whether_vectors_are_normalised(
    tmp_path: Path, kinds: tuple[str, ...], expected: bool
) -> None:
    write_chain(tmp_path, *kinds)
    write(tmp_path, "1_Pooling/config.json", MEAN)
    assert head_of(tmp_path).normalize is expected


def test_a_listed_module_without_description_is_missing(tmp_path: Path) -> None:
    write_chain(tmp_path, *CHAIN)
    with pytest.raises(NotFoundError, match=r"1_Pooling/config.json is missing, modules.json"):
        head_of(tmp_path)


# Pooling


def test_the_modes_are_those_that_the_pooling_code_knows(tmp_path: Path) -> None:
    every = dict.fromkeys(POOLING_MODES, True) | {"word_embedding_dimension": WIDTH}
    head = pooled(tmp_path, every)
    assert head.pooling == POOLING_MODES
    assert head.width == WIDTH * len(POOLING_MODES)


@pytest.mark.parametrize("flag", POOLING_MODES)
def test_one_flag_is_one_mode(tmp_path: Path, flag: str) -> None:
    flags = dict.fromkeys(POOLING_MODES, False) | {flag: True}
    head = pooled(tmp_path, flags | {"word_embedding_dimension": WIDTH})
    assert (head.pooling, head.width, head.warnings) == ((flag,), WIDTH, ())


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("cls", ("pooling_mode_cls_token",)),
        ("lasttoken", ("pooling_mode_lasttoken",)),
        (["weightedmean"], ("pooling_mode_weightedmean_tokens",)),
        (["max", "mean"], ("pooling_mode_max_tokens", "pooling_mode_mean_tokens")),
    ],
)
def test_the_newer_form_names_modes(tmp_path: Path, mode: object, pooling: tuple[str, ...]) -> None:
    config = {"embedding_dimension": WIDTH, "pooling_mode": mode}
    head = pooled(tmp_path, config | {"pooling_mode_mean_sqrt_len_tokens": True})
    assert (head.pooling, head.width, head.warnings) == (pooling, WIDTH * len(pooling), ())


@pytest.mark.parametrize(
    "mode", ["attention", "", [], ["cls", "x"], ["mean", "max"], ["cls", "cls"], [["cls"]]]
)
def test_unknown_modes_and_other_orders_are_not_supported(tmp_path: Path, mode: object) -> None:
    with pytest.raises(UnsupportedError, match=r"'pooling_mode' is .*; supported are, in this"):
        pooled(tmp_path, {"embedding_dimension": WIDTH, "pooling_mode": mode})


def test_a_description_without_a_mode_means_mean_with_a_warning(tmp_path: Path) -> None:
    head = pooled(tmp_path, {"word_embedding_dimension": WIDTH})
    assert head.pooling == ("pooling_mode_mean_tokens",)
    (warning,) = head.warnings
    assert "1_Pooling/config.json names no pooling mode; mean pooling is used" in warning


@pytest.mark.parametrize("key", ["word_embedding_dimension", "embedding_dimension"])
def test_pooling_of_another_width_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadArtifactError) as raised:
        pooled(tmp_path, {key: 32, "pooling_mode_cls_token": True})
    assert f"'{key}' is 32, hidden_size of config.json is 64" in raised.value.message


def test_pooling_tells_a_hidden_size_that_the_config_does_not(tmp_path: Path) -> None:
    head = pooled(tmp_path, MEAN | {"pooling_mode_max_tokens": True}, hidden_size=0)
    assert (head.hidden_size, head.width) == (WIDTH, 2 * WIDTH)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"pooling_mode_mean_tokens": True}, "'word_embedding_dimension' is missing"),
        (MEAN | {"word_embedding_dimension": "64"}, "'word_embedding_dimension' is not a whole"),
        (MEAN | {"word_embedding_dimension": 0}, "'word_embedding_dimension' is 0"),
        (MEAN | {"pooling_mode_max_tokens": "yes"}, "'pooling_mode_max_tokens' is not true or"),
        (MEAN | {"pooling_mode": 1}, "'pooling_mode' is not a list"),
        ([], "does not hold a JSON object"),
    ],
)
def test_damaged_pooling_is_refused(tmp_path: Path, config: object, reason: str) -> None:
    with pytest.raises(BadArtifactError) as raised:
        pooled(tmp_path, config)
    assert "1_Pooling/config.json" in raised.value.message
    assert reason in raised.value.message


def test_without_any_pooling_file_the_mean_is_taken_with_a_warning(tmp_path: Path) -> None:
    head = head_of(tmp_path)
    assert head.pooling == ("pooling_mode_mean_tokens",)
    assert (head.normalize, head.width, head.described, head.files) == (None, WIDTH, False, ())
    assert head.warnings == (f"{tmp_path.name} has no pooling file; mean pooling is used",)
    assert not has_pooling(tmp_path, None)


def test_a_pooling_folder_alone_is_used(tmp_path: Path) -> None:
    flags = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    write(tmp_path, "1_Pooling/config.json", flags)
    head = head_of(tmp_path)
    assert has_pooling(tmp_path, None)
    assert head.pooling == ("pooling_mode_cls_token",)
    assert (head.normalize, head.described, head.warnings) == (None, True, ())
    assert head.files == ("1_Pooling/config.json",)


def test_pooling_without_the_prompt_matters_only_where_there_is_one(tmp_path: Path) -> None:
    config = MEAN | {"include_prompt": False}
    write(tmp_path, "config_sentence_transformers.json", {"prompts": {"query": ""}})
    assert pooled(tmp_path, config).pooling == ("pooling_mode_mean_tokens",)
    write(tmp_path, "config_sentence_transformers.json", {"prompts": {"query": "Find: "}})
    with pytest.raises(UnsupportedError, match="'include_prompt' is false"):
        pooled(tmp_path, config)


# Dense and Normalize


@pytest.mark.parametrize("name", ["Identity", "Tanh", "ReLU", "GELU"])
def test_dense_layers_are_described(tmp_path: Path, name: str) -> None:
    activation = f"torch.nn.modules.activation.{name}"
    head = with_dense(
        tmp_path,
        DENSE | {"bias": False, "activation_function": activation},
        {"in_features": 32, "out_features": 16, "activation_function": f"torch.nn.{name}"},
    )
    first, second = (tmp_path / f"{number}_Dense" / "model.safetensors" for number in (2, 3))
    assert head.dense == (Dense(first, WIDTH, 32, False, name), Dense(second, 32, 16, True, name))
    assert head.width == 16
    assert head.files == (
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    )


def test_defaults_of_a_dense_layer_are_those_of_its_class(tmp_path: Path) -> None:
    (dense,) = with_dense(tmp_path, DENSE).dense
    assert (dense.bias, dense.activation) == (True, "Tanh")
    (dense,) = with_dense(tmp_path, DENSE | {"activation_function": None}).dense
    assert dense.activation == "Identity"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"activation_function": "torch.nn.SiLU"}, "activation 'SiLU' is not supported"),
        ({"activation_function": "torch.nn.tanh"}, "activation 'tanh' is not supported"),
        ({"activation_function": "my.module.Tanh"}, "'my.module.Tanh', supported are classes of t"),
        ({"use_residual": True}, "'use_residual' is true"),
        ({"module_input_name": "token_embeddings"}, "'module_input_name' is 'token_embeddings'"),
        ({"module_output_name": "other"}, "'module_output_name' is 'other'"),
    ],
)
def test_other_dense_layers_are_not_supported(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        with_dense(tmp_path, DENSE | changed)
    assert "2_Dense/config.json" in raised.value.message
    assert reason in raised.value.message


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"in_features": 63}, "'in_features' is 63, the step before it gives 64"),
        ({"in_features": None}, "'in_features' is missing"),
        ({"out_features": -1}, "'out_features' is -1"),
        ({"bias": "no"}, "'bias' is not true or false"),
        ({"activation_function": 1}, "'activation_function' is not a text"),
    ],
)
def test_damaged_dense_layers_are_refused(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadArtifactError) as raised:
        with_dense(tmp_path, DENSE | changed)
    assert "2_Dense/config.json" in raised.value.message
    assert reason in raised.value.message


def test_the_second_layer_must_take_what_the_first_gives(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError, match=r"3_Dense.* 'in_features' is 64, .* gives 32"):
        with_dense(tmp_path, DENSE, DENSE)


def test_dense_weights_must_be_safetensors(tmp_path: Path) -> None:
    with_dense(tmp_path, DENSE)
    weights = tmp_path / "2_Dense" / "model.safetensors"
    weights.unlink()
    with pytest.raises(NotFoundError, match=r"2_Dense/model.safetensors is missing"):
        head_of(tmp_path)
    weights.with_name("pytorch_model.bin").touch()
    with pytest.raises(BadArtifactError, match=r"has only a pickle; .*safe_serialization=True"):
        head_of(tmp_path)


def test_normalize_must_work_on_the_sentence_vector(tmp_path: Path) -> None:
    write_chain(tmp_path, *CHAIN, "Normalize")
    write(tmp_path, "1_Pooling/config.json", MEAN)
    config = {"module_input_name": "sentence_embedding", "module_output_name": None}
    write(tmp_path, "2_Normalize/config.json", config)
    assert "2_Normalize/config.json" in head_of(tmp_path).files
    write(tmp_path, "2_Normalize/config.json", {"module_input_name": "token_embeddings"})
    with pytest.raises(UnsupportedError, match=r"2_Normalize.*'token_embeddings'"):
        head_of(tmp_path)


# Prompts and options


def test_prompts_are_read_with_their_default(tmp_path: Path) -> None:
    prompts = {"query": "Find: ", "passage": ""}
    content = {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": None}
    write(tmp_path, "config_sentence_transformers.json", content)
    head = head_of(tmp_path)
    assert dict(head.prompts) == prompts
    assert head.default_prompt_name == "query"
    assert head.files == ("config_sentence_transformers.json",)


@pytest.mark.parametrize("content", [{}, {"prompts": None}, {"prompts": {}}])
def test_a_folder_may_have_no_prompts(tmp_path: Path, content: object) -> None:
    write(tmp_path, "config_sentence_transformers.json", content)
    head = head_of(tmp_path)
    assert (dict(head.prompts), head.default_prompt_name) == ({}, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"prompts": ["query"]}, "'prompts' is not an object"),
        ({"prompts": {"query": 1}}, "'prompts' must map names to texts"),
        ({"prompts": {"query": None}}, "'prompts' must map names to texts"),
        ({"default_prompt_name": "query"}, "'default_prompt_name' is 'query', 'prompts' has nothi"),
        (
            {"prompts": {"b": "", "a": ""}, "default_prompt_name": "c"},
            "'default_prompt_name' is 'c', 'prompts' has 'a', 'b'",
        ),
    ],
)
def test_damaged_prompts_are_refused(tmp_path: Path, content: object, reason: str) -> None:
    write(tmp_path, "config_sentence_transformers.json", content)
    with pytest.raises(BadArtifactError) as raised:
        head_of(tmp_path)
    assert "config_sentence_transformers.json" in raised.value.message
    assert reason in raised.value.message


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_transformer_options_are_read_under_each_of_their_names(
    tmp_path: Path, family: str
) -> None:
    write(tmp_path, f"sentence_{family}_config.json", {"max_seq_length": 256})
    options = read_transformer_options(tmp_path)
    assert options is not None
    assert options.length("max_seq_length") == 256


def test_a_folder_may_have_no_transformer_options(tmp_path: Path) -> None:
    assert read_transformer_options(tmp_path) is None
