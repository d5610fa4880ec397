"""Tokenizers: published vectors, losslessness, special tokens, the rules for BOS and EOS, and bad files."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from assets import need
from tahr.errors import TokenizerError
from tahr.text.tokens.gguf_words import word_splitter
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS, WHOLE_LINES
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tokens.vocab import END_MARKERS, byte_level, end_markers
from tahr.weights import open_gguf
from tiers import examples
from tiny_vocabulary import CONTROL, NAMED, NORMAL, UNKNOWN, tiny

VOCABULARIES = ("bert-bge", "gpt-2", "llama-bpe", "llama-spm", "qwen2")
MORE_VOCABULARIES = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4"),
    *("mpt", "phi-3", "qwen35", "refact", "starcoder"),
)
BYTE_LEVEL = ("gpt-2", "llama-bpe", "qwen2")


@cache
def metadata_of(name: str) -> Any:
    return open_gguf(need(f"tokenizers/ggml-vocab-{name}.gguf")).metadata


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of(name))


@pytest.mark.parametrize("name", VOCABULARIES + MORE_VOCABULARIES)
def test_published_vectors(name: str) -> None:
    base = need(f"tokenizers/ggml-vocab-{name}.gguf")
    texts = Path(f"{base}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{base}.out").read_text().split("\n")
    if lines[len(texts) :] == [""]:  # one of the files ends its last line
        lines.pop()
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer_of(name).encode(text, add_special=False, parse_special=False)
        assert ids == [int(number) for number in line.split()], text


@pytest.mark.parametrize("name", BYTE_LEVEL)
@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(max_size=60))
def test_byte_level_text_survives(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()


@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=60))
def test_sentencepiece_text_survives(text: str) -> None:
    tokenizer = tokenizer_of("llama-spm")
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


@cache
def library_bpe(name: str) -> Library:
    metadata = metadata_of(name)
    pieces, merges = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.merges"])
    row = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    library = Library(models.BPE({p: i for i, p in enumerate(pieces)}, pairs, ignore_merges=row.whole_words))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.splits]
    byte_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_letters])
    return library


CORPUS = st.lists(
    st.sampled_from(
        [
            "The quick brown fox",
            "'s",
            "  ",
            "\n\n",
            " 12345",
            "naïve",
            "日本語テキスト",
            "🙂👍🏽",
            "x_y=z[0];",
            "ﬁ",
            "\t",
            "—",
        ]
    )
    | st.text(max_size=12),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("name", ["gpt-2", "qwen2"])
@settings(max_examples=examples(80), deadline=None)
@given(text=CORPUS)
def test_our_merging_equals_the_library(name: str, text: str) -> None:
    ours = tokenizer_of(name).encode(text, add_special=False, parse_special=False)
    assert ours == library_bpe(name).encode(text).ids


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_way_to_cut_words_keeps_the_text(name: str) -> None:
    text = "Hello, World's 1234567 naïve CamelCase HTTPServer\r\n\n  x=y; 日本語 한국어 ไทย مرحبا 🙂 'LL\t—  "
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].splits]
    words = [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]
    assert "".join(words) == text
    assert len(words) > 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "it's 2024 ok", ["it", "'s", " 2024", " ok"]),
        ("llama-bpe", "IT'S 12345", ["IT", "'S", " ", "123", "45"]),
        ("qwen2", "a 123", ["a", " ", "1", "2", "3"]),
        ("gpt-4o", "camelCase's", ["camel", "Case's"]),
        ("tekken", "camelCase's", ["camel", "Case", "'s"]),
        ("deepseek-v3", "x 1234 你好a", ["x", " ", "123", "4", " ", "你好", "a"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("afmoe", "12345", ["12", "345"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("kimi-k2", "你好World", ["你好", "World"]),
    ],
)
def test_words_as_the_families_cut_them(name: str, text: str, words: list[str]) -> None:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].splits]
    assert [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("name", "marker"), [("qwen2", "<|im_end|>"), ("llama-bpe", "<|eot_id|>"), ("llama-spm", "</s>")]
)
def test_special_tokens_cannot_be_smuggled_in(name: str, marker: str) -> None:
    tokenizer = tokenizer_of(name)
    (special,) = tokenizer.encode(marker, add_special=False)
    assert tokenizer.is_special(special) and tokenizer.is_eos(special)
    plain = tokenizer.encode(f"a{marker}b", add_special=False, parse_special=False)
    assert not any(tokenizer.is_special(i) for i in plain)
    assert tokenizer.decode(plain) == f"a{marker}b"


def test_sentencepiece_never_merges_into_a_control_token() -> None:
    pieces = ["<unk>", "<s>", "</s>", "<", "s", ">", "<s", "▁"]
    tokenizer = Tokenizer.from_gguf(
        tiny("llama", tokens=pieces, token_type=[2, 3, 3, 1, 1, 1, 1, 1], scores=[0.0] * 8, unknown_token_id=0)
    )
    assert tokenizer.encode("<s>", add_special=False, parse_special=False) == [7, 6, 5]
    assert tokenizer.encode("<s>", add_special=False) == [1]


def test_sentencepiece_merges_the_best_score_first_and_then_leftmost() -> None:
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "aa"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]
    kinds = [2, 3, 3, 1, 1, 1, 1, 1, 1]
    tokenizer = Tokenizer.from_gguf(
        tiny("llama", tokens=pieces, scores=scores, token_type=kinds, unknown_token_id=0, add_space_prefix=False)
    )

    def cut(text: str) -> list[str]:
        return [tokenizer.piece(i) for i in tokenizer.encode(text, add_special=False)]

    assert cut("abc") == ["a", "bc"]
    assert cut("aaa") == ["aa", "a"]


def test_a_piece_that_spans_words_still_wins() -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "a▁", "a▁b", "▁a", "▁b"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0]
    tokenizer = Tokenizer.from_gguf(
        tiny("llama", tokens=pieces, scores=scores, token_type=[2, 3, 3] + [1] * 7, unknown_token_id=0)
    )
    assert [tokenizer.piece(i) for i in tokenizer.encode("a b b", add_special=False)] == ["▁", "a▁b", "▁b"]


def test_named_tokens_are_found_with_and_without_parsing() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    last = tokenizer.n_vocab - 1
    assert tokenizer.encode("a[named one]b", parse_special=False)[1] == last
    assert tokenizer.decode([last]) == "[named one]"
    assert not tokenizer.is_special(last)


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, [4]),
        ({"add_bos_token": True}, [0, 4]),
        ({"add_eos_token": True}, [4, 1]),
        ({"pre": "llama-bpe", "add_bos_token": None}, [0, 4]),
        ({"pre": "qwen2", "add_bos_token": None}, [4]),
    ],
)
def test_bos_and_eos_follow_the_file(changes: dict[str, Any], ids: list[int]) -> None:
    tokenizer = Tokenizer.from_gguf(tiny(**changes))
    assert tokenizer.encode("a") == ids
    assert tokenizer.encode("a", add_special=False) == [4]


def test_bert_brackets_its_text() -> None:
    tokenizer = tokenizer_of("bert-bge")
    assert [tokenizer.piece(i) for i in tokenizer.encode("Hello world")] == ["[CLS]", "▁hello", "▁world", "[SEP]"]
    assert tokenizer.decode(tokenizer.encode("Hello embeddings")) == "hello embeddings"


def test_end_ids_come_from_fields_and_well_known_markers() -> None:
    assert Tokenizer.from_gguf(tiny()).eos_ids == {1, 3}
    assert Tokenizer.from_gguf(tiny(eot_token_id=5, eom_token_id=6)).eos_ids == {1, 3, 5, 6}
    ordinary = tiny(token_type=[CONTROL, CONTROL, UNKNOWN, NORMAL] + [NORMAL] * 32)
    assert Tokenizer.from_gguf(ordinary).eos_ids == {1}  # a marker that is only text ends nothing


def test_a_message_end_is_no_reply_end_where_replies_have_their_own() -> None:
    def ends(*markers: str) -> set[str]:
        metadata = tiny(tokens=["a", *markers], token_type=[NORMAL] + [CONTROL] * len(markers), unknown_token_id=None)
        metadata |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
        tokenizer = Tokenizer.from_gguf(metadata)
        return {tokenizer.piece(i) for i in tokenizer.eos_ids}

    assert ends("<|endoftext|>", "<|end|>") == {"<|endoftext|>", "<|end|>"}
    assert ends("<|return|>", "<|end|>", "<|call|>") == {"<|return|>", "<|call|>"}
    assert all(reason for reason in END_MARKERS.values())


def test_llama4_ends_a_message_to_a_tool() -> None:
    """Files of Llama 4 name <|eot|> alone; after a call it writes <|eom|>."""
    ids = {"<|end_of_text|>": 1, "<|header_start|>": 5, "<|eom|>": 7, "<|eot|>": 8}
    assert end_markers(ids) == {1, 7, 8}
    assert end_markers({"<|start|>": 5, "<|eom|>": 7, "<|eot|>": 8}) == {8}  # there a message goes before the reply


def test_unigram_takes_the_most_probable_cut() -> None:
    pieces = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a", "▁ab"]
    scores = [0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -9.0, -2.0, -20.0]
    tokenizer = Tokenizer.from_gguf(
        tiny("t5", tokens=pieces, scores=scores, token_type=[3, 3, 2] + [1] * 6, bos_token_id=None)
    )
    assert [tokenizer.piece(i) for i in tokenizer.encode("ab")] == ["▁a", "b", "</s>"]
    assert tokenizer.encode("</s>", add_special=False) == [1]
    assert 1 not in tokenizer.encode("</s>", add_special=False, parse_special=False)


def test_gemma4_merges_over_spaces() -> None:
    pieces = ["<bos>", "<eos>", "<unk>", "▁", "a", "b", "▁a", "<0x0A>"]
    tokenizer = Tokenizer.from_gguf(
        tiny("gemma4", tokens=pieces, token_type=[3, 3, 2, 1, 1, 1, 1, 6], merges=["▁ a"], add_bos_token=None)
    )
    assert tokenizer.encode("b a\n") == [0, 5, 6, 7]
    assert tokenizer.decode([0, 5, 6, 7]) == "b a\n"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocab_bytes_cover_every_text_token(name: str) -> None:
    tokenizer = tokenizer_of(name)
    table = dict(tokenizer.vocab_bytes())
    assert len(table) == tokenizer.n_vocab - sum(tokenizer.is_special(i) for i in range(tokenizer.n_vocab))
    text = "Hi 🙂"
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert all(i in table or name == "bert-bge" for i in ids)
    if name == "llama-spm":
        assert {bytes([byte]) for byte in range(256)} <= set(table.values())


def test_the_byte_alphabet_is_one_letter_per_byte() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert {byte_level(letter) for letter in alphabet} == {bytes([byte]) for byte in range(256)}


BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no tokenizer": ({"model": None}, "carries no tokenizer"),
    "no tokens": ({"tokens": []}, "carries no tokenizer"),
    "unknown model": ({"model": "rwkv"}, "'rwkv'"),
    "none": ({"model": "none"}, "'none'"),
    "unknown pre": ({"pre": "klingon"}, "'klingon'"),
    "types too short": ({"token_type": [1, 1]}, "token_type"),
    "no merges": ({"merges": []}, "merges"),
    "eos outside": ({"eos_token_id": 10_000}, "eos_token_id"),
    "bos wanted but absent": ({"bos_token_id": None, "add_bos_token": True}, "add_bos_token"),
    "tokens not strings": ({"tokens": [1, 2]}, "strings"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_metadata_is_refused_in_a_sentence(case: str) -> None:
    changes, word = BAD_FILES[case]
    with pytest.raises(TokenizerError, match=word) as caught:
        Tokenizer.from_gguf(tiny(**changes))
    assert str(caught.value).rstrip().endswith(".")


def test_letters_without_a_token_are_not_dropped_silently() -> None:
    assert Tokenizer.from_gguf(tiny()).encode("É", add_special=False) == [2, 2]
    with pytest.raises(TokenizerError, match="no token for"):
        Tokenizer.from_gguf(tiny(unknown_token_id=None)).encode("É")


def test_ids_outside_and_half_characters_are_refused() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    for bad in (-1, tokenizer.n_vocab):
        with pytest.raises(TokenizerError, match="no token"):
            tokenizer.decode([bad])
    with pytest.raises(TokenizerError, match="surrogate"):
        tokenizer.encode("a\ud800")


def library_json(kind: str) -> str:
    """A small tokenizer.json as the Hugging Face library writes it."""
    specials = [AddedToken(piece, special=True, normalized=False) for piece in ("<s>", "</s>", "<|im_end|>")]
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "▁ab": 5, "Ġ": 6, "Ã": 7, "©": 8, "<0xC3>": 9, "<0xA9>": 10}
    if kind == "byte-level":
        made = Library(models.BPE(vocab, [("a", "b")]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    elif kind == "sentencepiece":
        made = Library(models.BPE(vocab, [("a", "b"), ("▁", "ab")], unk_token="<unk>", byte_fallback=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        made.decoder = decoders.Sequence(steps)
    elif kind == "wordpiece":
        made = Library(models.WordPiece({"[UNK]": 0, "ab": 1, "##ab": 2, "a": 3}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.decoder = decoders.WordPiece(cleanup=False)
    else:
        made = Library(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁", -1.0), ("a", -1.0), ("s", -1.0)], unk_id=0))
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
    made.add_special_tokens(specials)
    bos = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return str(made.to_str())


KINDS = {"byte-level": "ab abé", "sentencepiece": "ab abé", "wordpiece": "ab abab a", "unigram": "a aa"}


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_json_equals_the_library(kind: str) -> None:
    data = library_json(kind)
    library, ours = Library.from_str(data), Tokenizer.from_json(data)
    for text in (KINDS[kind], "", "a</s>a"):
        ids = library.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == library.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_json_keeps_special_tokens_out_of_plain_text(kind: str) -> None:
    data = library_json(kind)
    ours = Tokenizer.from_json(data)
    assert any(ours.is_special(i) for i in ours.encode("a</s>", add_special=False))
    assert not any(ours.is_special(i) for i in ours.encode("a</s>", add_special=False, parse_special=False))


def test_tokenizer_json_configuration_rules() -> None:
    data = library_json("byte-level")
    ids: Callable[[str], int] = Library.from_str(data).token_to_id
    off = Tokenizer.from_json(data, config={"bos_token": "<s>", "add_bos_token": False})
    assert off.encode("a") == [1] and off.bos_id == ids("<s>")
    both = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_eos_token": True}
    assert Tokenizer.from_json(data, config=both).encode("a") == [ids("<s>"), 1, ids("</s>")]
    stated = Tokenizer.from_json(
        data, config={"eos_token": "</s>"}, generation={"eos_token_id": [ids("<|im_end|>"), 2]}
    )
    assert stated.eos_ids == {ids("<|im_end|>"), ids("</s>"), 2} and stated.eos_id == ids("</s>")
    assert Tokenizer.from_json(data, generation={"eos_token_id": 2}).eos_ids == {2}
    assert Tokenizer.from_json(data).eos_ids == {ids("<|im_end|>")}  # nothing stated: the marker's name
    assert Tokenizer.from_json(data, config={"bos_token": ""}).bos_id is None


def test_classes_without_switches_for_bos_and_eos() -> None:
    """What transformers does with them: the class that knows nothing of a model leaves all to tokenizer.json."""
    data, config = library_json("byte-level"), {"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}
    fast = {**config, "add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    assert Tokenizer.from_json(data, config=fast).encode("a") == Library.from_str(data).encode("a").ids
    llama = Tokenizer.from_json(data, config={**fast, "tokenizer_class": "LlamaTokenizerFast"})
    assert llama.encode("a") == [1, llama.eos_id]


@pytest.mark.parametrize("stated", [[2, 999], [2, -1], [999, 10**9, 2]])
def test_numbers_without_a_token_end_nothing(stated: list[int]) -> None:
    """As of vocabularies that were cut or never grown; a reply ends with the others."""
    data = library_json("byte-level")
    assert Tokenizer.from_json(data, generation={"eos_token_id": stated}).eos_ids == {2}
    named = Tokenizer.from_json(data, config={"eos_token": "</s>"}, generation={"eos_token_id": stated[-1]})
    assert named.eos_id in named.eos_ids
    assert Tokenizer.from_json(data, generation={"eos_token_id": -1}).eos_ids == Tokenizer.from_json(data).eos_ids


@pytest.mark.parametrize(
    ("config", "generation"),
    [({"eos_token": "<nope>"}, {}), ({}, {"eos_token_id": 999}), ({}, {"eos_token_id": "2"})],
)
def test_files_of_different_models_are_refused(config: dict[str, Any], generation: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="different models"):
        Tokenizer.from_json(library_json("byte-level"), config=config, generation=generation)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not json", b"\xff\xfe", b'{"model": 3}'])
def test_broken_tokenizer_json_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_json(data)


def test_directories(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match="SentencePiece model"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(library_json("byte-level"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "pad_token": None}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer.piece(tokenizer.bos_id or 0) == "<s>"
    assert {tokenizer.piece(i) for i in tokenizer.eos_ids} == {"</s>", "ab"}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert {tokenizer.piece(i) for i in Tokenizer.from_dir(tmp_path).eos_ids} == {"</s>", "a", "b"}
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(TokenizerError, match="generation_config"):
        Tokenizer.from_dir(tmp_path)


def test_end_markers_that_a_file_marks_as_the_users_end_a_reply() -> None:
    pieces, kinds = tiny()["tokenizer.ggml.tokens"], tiny()["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_gguf(tiny(tokens=[*pieces, "<|tool_response>"], token_type=[*kinds, NAMED]))
    assert tokenizer.is_eos(len(pieces)) and not tokenizer.is_eos(len(pieces) - 1)
    # A piece of plain text that looks like one is text.
    tokenizer = Tokenizer.from_gguf(tiny(tokens=[*pieces, "<|tool_response>"], token_type=[*kinds, NORMAL]))
    assert not tokenizer.is_eos(len(pieces))


def test_glm4_takes_whole_words_without_merging() -> None:
    pieces, kinds, scores = (tiny()[f"tokenizer.ggml.{field}"] for field in ("tokens", "token_type", "scores"))
    changes = {"tokens": [*pieces, "xyz"], "token_type": [*kinds, NORMAL], "scores": [*scores, 0.0]}
    for pre, n_tokens in {"glm4": 1, "glm5": 1, "chatglm-bpe": 3}.items():
        tokenizer = Tokenizer.from_gguf(tiny(pre=pre, **changes))
        assert len(tokenizer.encode("xyz", add_special=False)) == n_tokens, pre


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("ufakzeka", "Ali'den 12", ["Ali", "'den", " ", "1", "2"]),
        ("spark2_5", "a!\n\nb 1234", ["a", "!", "\n", "\n", "b", " ", "1", "2", "3", "4"]),
        ("hy_v4", "a!\n\nb 1234", ["a", "!\n\n", "b", " ", "123", "4"]),
    ],
)
def test_newer_rules(pre: str, text: str, words: list[str]) -> None:
    split = word_splitter(PRE_TOKENIZERS[pre].splits)
    assert split(text) == words


def test_files_that_say_gpt2_and_merge_whole_lines() -> None:
    for pre in WHOLE_LINES:
        tokenizer = Tokenizer.from_gguf(tiny(pre=pre, merges=["a b", "▁ ab"]))
        assert tokenizer.decode(tokenizer.encode("c ab", add_special=False)) == "c ab"
        assert len(tokenizer.encode("c ab", add_special=False)) == 2
