"""Folders of decoders as they are published: what makes one an embedding model, and how it reads.

Qwen3-Embedding names itself a causal language model and pads on the left; EmbeddingGemma brings
prompts and two dense layers. Their tokenizers are built here small, in the published forms.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from libsemantic.engine.config import LoadOptions, LongText, RunOptions, Task
from libsemantic.engine.errors import Status, UnsupportedError
from libsemantic.engine.registry import Registry
from libsemantic.engine.tokenization import Layout, load_tokenizer

from .graph_runs import GOLDEN_TOLERANCE, MODELS, arrays_of, write_file

QWEN3, GEMMA3 = "qwen3-embed-last", "gemma3-embed-mean"
CopyGolden = Callable[[str, Mapping[str, object]], Path]
CORPUS = ["What is the derivative of x squared?", "naïve 数学 модель 🇩🇪", "tab\tand\nline"]
PROMPTS = {
    "query": "Instruct: Given a web search query, retrieve relevant passages\nQuery:",
    "document": "title: none | text: ",
}


def expected(name: str) -> tuple[list[str], np.ndarray]:
    cases = json.loads((MODELS / name / "expected.json").read_text())["cases"]
    return [case["text"] for case in cases], np.array([case["embedding"] for case in cases])


@pytest.mark.parametrize(
    ("name", "architecture"), [(QWEN3, "Qwen3ForCausalLM"), (GEMMA3, "Gemma3ForCausalLM")]
)
def test_a_language_model_embeds_only_where_its_folder_says_how(
    registry: Registry, copy_golden: CopyGolden, name: str, architecture: str
) -> None:
    folder = copy_golden(name, {"config.json": {"architectures": [architecture]}})
    arrays = arrays_of(name) | {"lm_head.weight": np.zeros((3, 3), np.float32)}
    write_file(folder / "model.safetensors", arrays, lambda _: "F32")
    texts, vectors = expected(name)
    handle = registry.load(str(folder))
    info = registry.info(handle)
    assert (info.task, info.architecture) == (Task.EMBEDDING, architecture)
    assert np.abs(registry.embed(handle, texts).values - vectors).max() <= GOLDEN_TOLERANCE
    (folder / "modules.json").unlink()
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(UnsupportedError, match=f"architecture '{architecture}' is not supported"):
        registry.load(str(folder), LoadOptions(name="other"))


def test_added_tokens_beyond_the_embeddings_are_refused_in_a_text(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    """EmbeddingGemma has 262,144 embeddings; its tokenizer has a token of images after them."""
    content = json.loads((MODELS / GEMMA3 / "tokenizer.json").read_text())
    rows = json.loads((MODELS / GEMMA3 / "config.json").read_text())["vocab_size"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    image = {"id": rows, "content": "<image_soft_token>", "special": True, **flags}
    added = [*content["added_tokens"], image]
    folder = copy_golden(GEMMA3, {"tokenizer.json": {"added_tokens": added}})
    handle = registry.load(str(folder))
    (warning,) = registry.info(handle).warnings
    assert f"has token ids up to {rows}, the model has {rows} embeddings; texts with" in warning
    texts, vectors = expected(GEMMA3)
    answer = registry.embed(handle, [*texts, "an <image_soft_token> here"])
    assert np.abs(answer.values[:-1] - vectors).max() <= GOLDEN_TOLERANCE
    assert answer.rows.status == (*[0] * len(texts), Status.UNSUPPORTED)
    assert answer.rows.message[-1].startswith(f"a text has the token of id {rows}, the model has")


@pytest.mark.parametrize("name", [QWEN3, GEMMA3])
@pytest.mark.parametrize("side", ["Left", "Right"])
def test_the_padding_side_of_the_tokenizer_does_not_matter(
    registry: Registry, copy_golden: CopyGolden, name: str, side: str
) -> None:
    padding = {
        "strategy": "BatchLongest",
        "direction": side,
        "pad_to_multiple_of": 8,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    truncation = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    changes = {
        "tokenizer.json": {"padding": padding, "truncation": truncation},
        "tokenizer_config.json": {"padding_side": side.lower()},
    }
    handle = registry.load(str(copy_golden(name, changes)))
    texts, vectors = expected(name)
    assert np.abs(registry.embed(handle, texts).values - vectors).max() <= GOLDEN_TOLERANCE
    for text, vector in zip(texts, vectors, strict=True):
        assert np.abs(registry.embed(handle, [text]).values - vector).max() <= GOLDEN_TOLERANCE


@pytest.mark.parametrize("name", [QWEN3, GEMMA3])
def test_prompts_come_before_the_text(
    registry: Registry, copy_golden: CopyGolden, name: str
) -> None:
    folder = copy_golden(name, {})
    prompts = {"prompts": PROMPTS, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    handle = registry.load(str(folder))
    assert registry.info(handle).prompt_names == tuple(PROMPTS)
    plain = RunOptions(prompt_name="")
    text = "derivative of x"
    found = [
        registry.embed(handle, [text], RunOptions(prompt_name=prompt)).values
        for prompt in (None, "document", "query", "")
    ]
    whole = [
        registry.embed(handle, [PROMPTS.get(prompt, "") + text], plain).values
        for prompt in ("document", "document", "query", "")
    ]
    np.testing.assert_array_equal(found, whole)
    assert np.abs(found[1] - found[2]).max() > 0.01 < np.abs(found[2] - found[3]).max()


def test_a_loaded_decoder_describes_itself(registry: Registry) -> None:
    facts = {}
    for name in (QWEN3, GEMMA3):
        info = registry.info(registry.load(str(MODELS / name), LoadOptions(max_tokens=512)))
        facts[name] = (info.family, info.position_limit, info.max_tokens, info.dimension)
    assert facts == {QWEN3: ("qwen3", 512, 512, 64), GEMMA3: ("gemma3_text", 512, 512, 64)}


def qwen3_tokenizer() -> tokenizers.Tokenizer:
    """Make a tokenizer in the form of Qwen3-Embedding's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    made.train_from_iterator(CORPUS, trainer)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|endoftext|>",
                pair="$A <|endoftext|> $B <|endoftext|>",
                special_tokens=[("<|endoftext|>", 0)],
            ),
        ]
    )
    return made


def gemma3_tokenizer() -> tokenizers.Tokenizer:
    """Make a tokenizer in the form of EmbeddingGemma's: SentencePiece's BPE, bytes for the rest."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[*specials, *pieces])
    made.train_from_iterator(CORPUS[:1], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return made


@pytest.mark.parametrize(
    ("make", "layout", "first", "last"),
    [(qwen3_tokenizer, Layout(0, 0, 1), None, 0), (gemma3_tokenizer, Layout(1, 0, 1), 2, 1)],
)
def test_tokenizers_in_their_published_forms(
    tmp_path: Path,
    make: Callable[[], tokenizers.Tokenizer],
    layout: Layout,
    first: int | None,
    last: int,
) -> None:
    made = make()
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.single == layout
    for text in [*CORPUS, "", "x" * 300, "new 语 word"]:
        (encoded,) = tokenizer.encode([text], True)
        assert encoded.ids.tolist() == made.encode(text).ids
        assert encoded.ids[-1] == last
        assert first is None or encoded.ids[0] == first
        start, end = encoded.first
        assert (start, end) == (layout.before, encoded.token_count - layout.after)
        offsets = encoded.offsets()
        covered = "".join(text[a:b] for a, b in dict.fromkeys(map(tuple, offsets.tolist())))
        assert len(covered) >= len(text.replace(" ", ""))


def test_a_cut_text_keeps_the_token_that_is_read(registry: Registry) -> None:
    handle = registry.load(str(MODELS / QWEN3), LoadOptions(max_tokens=9))
    options = RunOptions(long_text=LongText.CUT)
    result = registry.embed(handle, ["math code law " * 20], options)
    assert result.rows.scored_token_count == (9,)
    tokenizer = load_tokenizer(MODELS / QWEN3 / "tokenizer.json")
    (encoded,) = tokenizer.encode(["math code law " * 20], True)
    end = encoded.offsets()[7][1]
    kept = ("math code law " * 20)[:end]
    np.testing.assert_allclose(
        registry.embed(handle, [kept], options).values, result.values, rtol=0, atol=1e-6
    )
