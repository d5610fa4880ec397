"""What the user may type, and which files of a listing that means: tables, no network, no disk but for paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tahr.errors import ConfigError, CorruptFile, ModelNotFound
from tahr.hub import pick
from tahr.hub.aliases import SHA256, TOKENIZER_REPOS
from tahr.hub.refs import ALIASES, DEFAULT_MODEL, Ref, bf16_bytes, parse, quant_of, twin_of

# text -> (kind, repo, selector, revision)
FORMS = {
    "Qwen/Qwen3-0.6B": ("hf", "Qwen/Qwen3-0.6B", None, None),
    "Qwen3-0.6B": ("hf", "Qwen/Qwen3-0.6B", None, None),
    "qwen2.5-7B-Instruct": ("hf", "Qwen/qwen2.5-7B-Instruct", None, None),
    "granite-4.0-micro": ("hf", "ibm-granite/granite-4.0-micro", None, None),
    "Granite-3.3-2b-instruct": ("hf", "ibm-granite/Granite-3.3-2b-instruct", None, None),
    "someone/my-granite": ("hf", "someone/my-granite", None, None),
    "unsloth/Qwen3-4B-GGUF:q4_k_m": ("hf", "unsloth/Qwen3-4B-GGUF", "Q4_K_M", None),
    "unsloth/Qwen3-4B-GGUF:": ("hf", "unsloth/Qwen3-4B-GGUF", None, None),
    "hf:org/repo:Q8_0": ("hf", "org/repo", "Q8_0", None),
    "HuggingFace:org/repo": ("hf", "org/repo", None, None),
    "org/repo:sub/Model-Q8_0.gguf": ("hf", "org/repo", "sub/Model-Q8_0.gguf", None),
    "org/repo@v1.2:Q8_0": ("hf", "org/repo", "Q8_0", "v1.2"),
    "org/repo@refs/pr/3": ("hf", "org/repo", None, "refs/pr/3"),
    "ollama:llama3.2": ("ollama", "library/llama3.2", "latest", None),
    "ollama:llama3.2:1b": ("ollama", "library/llama3.2", "1b", None),
    "ollama:someone/model:tag": ("ollama", "someone/model", "tag", None),
}


@pytest.mark.parametrize("text", FORMS)
def test_every_form_is_understood(text: str) -> None:
    ref = parse(text)
    assert (ref.kind, ref.repo, ref.selector, ref.revision) == FORMS[text]


@pytest.mark.parametrize("text", FORMS)
def test_the_name_of_a_reference_means_the_same_reference(text: str) -> None:
    ref = parse(text)
    assert parse(ref.name) == ref


@pytest.mark.parametrize("text", ["/models/x", "./x", "../x", "~/x", "x.gguf", "models/x.GGUF", ".", ".."])
def test_path_like_text_is_a_path_even_if_absent(text: str) -> None:
    ref = parse(text)
    assert ref.kind == "path"
    assert ref.path == Path(text).expanduser()


@pytest.mark.parametrize("text", ["https://x.example/m.gguf", "http://x/m", "https://huggingface.co/org/name"])
def test_an_address_is_no_name_of_a_model(text: str) -> None:
    with pytest.raises(ModelNotFound, match="is an address, which is not opened: name the repository"):
        parse(text)


def test_an_existing_path_wins_over_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse("org/name").kind == "path"
    assert parse("org/other").kind == "hf"


def test_pypi_packages_keep_their_order() -> None:
    ref = parse("pypi:b==2.0, a==1.0")
    assert (ref.kind, ref.packages) == ("pypi", ("b==2.0", "a==1.0"))


BAD = ["foo:bar", "foo", "", "hf:nothing", "a/b/c", "org/re--po", "org/..", "hf:../x/y", "org/repo:../../x.gguf"]
BAD += ["org/repo@../x", "ollama:", "ollama:../x", "ollama:a/b/c", "ollama:x:..", "pypi:name", "pypi:", "pypi:a==1,b"]
BAD += ["pypi:../a==1", "pypi:a==1 --index-url=x", "pypi:--pre==1", "pypi:a==..", "ftp://x/y", "org/na me"]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_reference_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse(text)
    assert caught.value.exit_code == 2
    assert str(caught.value).endswith(".")


def test_an_unknown_alias_names_its_neighbours_and_the_list() -> None:
    with pytest.raises(ModelNotFound, match=r"qwen3:8b.*tahr list --aliases"):
        parse("qwen3:8bb")


# The names ferrum 0.7.7 knows, plus the two it gets wrong, plus ours.
KNOWN = """
tinyllama tiny qwen2.5:0.5b qwen2.5:1.5b qwen2.5:3b qwen2.5:7b qwen:0.5b qwen:1.5b qwen:3b qwen:7b
qwen2.5:3b-gptq qwen3:14b-gptq qwen3:32b-gptq qwen3-coder:30b-gptq deepseek-r1:32b-gptq qwen2.5-coder:32b-gptq
gemma3:27b-gptq qwen3:0.6b qwen3:1.7b qwen3:4b qwen3:8b qwen3:14b qwen3:32b
qwen3-coder:30b qwen3-coder:30b-a3b deepseek-r1:8b deepseek-r1:14b deepseek-r1:32b r1:8b
r1:14b r1:32b qwen2.5-coder:14b qwen2.5-coder:32b gemma3:1b
gemma3:4b gemma3:27b mistral-small:24b mistral-small:3.2 devstral:24b devstral:2 magistral:24b
llama3.2:1b llama3.2:3b qwen3:4b-q4_k_m qwen3:8b-q4_k_m qwen3:14b-q4_k_m
qwen3:32b-q4_k_m qwen3:1.7b-q8_0 qwen3:0.6b-gguf qwen3:0.6b-q8_0 qwen3:30b-a3b-q4_k_m qwen3-coder:30b-q4_k_m
deepseek-r1:8b-q4_k_m deepseek-r1:32b-q4_k_m qwen2.5-coder:32b-q4_k_m gemma3:1b-q4_k_m gemma3:27b-q4_k_m
mistral-small:24b-q4_k_m devstral:24b-q4_k_m magistral:24b-q4_k_m llama3.1:8b-q4_k_m llama3.2:1b-q4_k_m
llama3.2:3b-q4_k_m smollm2:135m gemma3:270m
""".split()  # noqa: SIM905


@pytest.mark.parametrize("alias", KNOWN)
def test_known_aliases_resolve_in_any_case(alias: str) -> None:
    assert parse(alias.upper()) == parse(alias)
    assert parse(alias).name == alias


def test_every_alias_is_well_formed() -> None:
    for alias, target in ALIASES.items():
        ref = parse(alias)
        assert alias == alias.lower() and ref.kind in ("hf", "pypi"), alias
        quant = quant_of(alias.rpartition("-")[2]) or quant_of(alias.partition("-")[2])
        assert quant is None or quant_of(ref.selector or "") == quant, f"{alias} promises {quant}, is {target}"


def test_aliases_worth_checking_by_hand() -> None:
    assert parse("qwen3:4b").repo == "Qwen/Qwen3-4B"
    assert parse("qwen3:8b").repo == "Qwen/Qwen3-8B"
    assert (parse("qwen3:1.7b").repo, parse("qwen3:1.7b").selector) == ("Qwen/Qwen3-1.7B", None)
    pinned = parse("qwen3:8b-q4_k_m")
    assert (pinned.repo, pinned.selector) == ("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf")
    assert pinned.tokenizer_repo == "Qwen/Qwen3-8B"
    assert parse("llama3.2:1b-q4_k_m").tokenizer_repo == "unsloth/Llama-3.2-1B-Instruct"
    assert len(parse("gemma3:270m").packages) == 4
    assert parse(DEFAULT_MODEL).sha256 == SHA256[DEFAULT_MODEL]
    assert set(TOKENIZER_REPOS) <= {parse(alias).repo for alias in ALIASES}


WITHOUT_A_SIZE = """qwen3 qwen3-coder qwen2.5 qwen qwen2.5-coder smollm2 gemma3 llama3.1 llama3.2 deepseek-r1 r1
mistral-small devstral magistral tinyllama tiny""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", WITHOUT_A_SIZE)
def test_names_without_a_size_are_quantised_files(name: str) -> None:
    ref = parse(name)
    assert quant_of(ref.selector or "") == "Q4_K_M" and ref.twin is None and ref.name == name
    assert replace(parse(f"{name}:latest"), name=name) == ref, "as Ollama writes it"


def test_every_repository_has_a_quantised_twin_of_its_size() -> None:
    for alias, target in ALIASES.items():
        ref = parse(alias)
        twin = twin_of(ref)
        if ref.kind == "hf" and ref.selector is None and not any(kind in target.lower() for kind in ("gptq", "-tts-")):
            assert twin and quant_of(twin.selector or "") == "Q4_K_M" and twin.name == alias, alias
            assert 5e8 < bf16_bytes(ref) < 1e11, alias
        else:
            assert twin is None, alias
    assert bf16_bytes(parse("qwen3:8b")) == 16 * 10**9 and bf16_bytes(parse("smollm2:360m")) == 72 * 10**7


def test_an_exact_name_and_one_with_a_quant_or_a_revision_have_no_twin() -> None:
    assert parse("qwen3:8b").twin == "qwen3:8b-q4_k_m"
    exact = parse("exact:Qwen3:8B")
    assert (exact.name, exact.repo, exact.twin) == ("qwen3:8b", "Qwen/Qwen3-8B", None)
    assert parse("qwen3:8b", quant="Q8_0").twin is None and parse("qwen3:8b", revision="main").twin is None


@pytest.mark.parametrize("name", ["whisper-tiny", "whisper:turbo"])
def test_no_name_is_offered_that_no_verb_runs(name: str) -> None:
    assert name not in ALIASES


def test_quantised_shorthand_takes_weights_from_the_twin_and_the_rest_from_the_base() -> None:
    ref = parse("Qwen3-0.6B", quant="q4_k_m")
    assert (ref.repo, ref.selector) == ("unsloth/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q4_K_M.gguf")
    assert ref.tokenizer_repo == "Qwen/Qwen3-0.6B"
    assert parse("org/x-GGUF", quant="Q8_0").selector == "Q8_0"
    assert parse("org/x:Q8_0", quant="q8_0") == parse("org/x:Q8_0")


@pytest.mark.parametrize(
    "text", ["./model", "x.gguf", "smollm2:135m", "ollama:llama3.2", "org/x:Q8_0", "qwen3:0.6b-q8_0"]
)
def test_a_quant_where_none_can_be_chosen_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, quant="Q4_K_M")


def test_a_revision_is_checked_and_only_for_the_hub() -> None:
    assert parse("org/x", revision="v1").revision == "v1"
    for text, revision in (("smollm2:135m", "v1"), ("org/x", "../../etc"), ("org/x", "/abs")):
        with pytest.raises(ConfigError):
            parse(text, revision=revision)


QUANTS = {
    "Qwen3-8B-Q4_K_M.gguf": "Q4_K_M",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "Q4_1",
    "gemma-3-270m-q4_k_m.gguf": "Q4_K_M",
    "UD-Q4_K_XL/x-UD-Q4_K_XL-00001-of-00002.gguf": "UD-Q4_K_XL",
    "x-IQ3_XXS.gguf": "IQ3_XXS",
    "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    "x-BF16.gguf": "BF16",
    "x.fp16.gguf": "F16",
    "x-TQ1_0.gguf": "TQ1_0",
    "plain.gguf": None,
    "Qwen3-8B.gguf": None,
}


@pytest.mark.parametrize("name", QUANTS)
def test_the_quant_is_read_from_the_name(name: str) -> None:
    assert quant_of(name) == QUANTS[name]


LISTING = ["README.md", "mmproj-F16.gguf", "m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-imatrix.gguf"]
SPLIT = [f"Q5_K_M/m-Q5_K_M-{part:05}-of-00003.gguf" for part in (1, 2, 3)]

# (listing, selector) -> chosen files
CHOICES = [
    (LISTING, None, ["m-Q4_K_M.gguf"]),
    (LISTING, "Q8_0", ["m-Q8_0.gguf"]),
    (LISTING, "F16", ["m-F16.gguf"]),
    (LISTING, "M-q8_0.GGUF", ["m-Q8_0.gguf"]),
    (["mmproj-F16.gguf", "m-F16.gguf", "m-Q8_0.gguf"], None, ["m-Q8_0.gguf"]),
    (["m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf"], "Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
    (["model.gguf", "mmproj.gguf"], None, ["model.gguf"]),
    ([*reversed(SPLIT), *LISTING], "Q5_K_M", SPLIT),
    (SPLIT, "m-Q5_K_M.gguf", SPLIT),
    (SPLIT, "m-Q5_K_M-00002-of-00003.gguf", SPLIT),
]


@pytest.mark.parametrize(("names", "selector", "expected"), CHOICES)
def test_one_gguf_is_picked(names: list[str], selector: str | None, expected: list[str]) -> None:
    assert list(pick.choose_gguf(names, selector, "org/m").files) == expected


@pytest.mark.parametrize(
    ("names", "selector"),
    [
        (LISTING, "Q2_K"),
        (LISTING, "other.gguf"),
        (["mmproj-F16.gguf", "m-F16.gguf"], None),
        ([], None),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None),
    ],
)
def test_doubt_is_refused_with_the_choices(names: list[str], selector: str | None) -> None:
    with pytest.raises(ModelNotFound, match="org/m") as caught:
        pick.choose_gguf(names, selector, "org/m")
    assert all(name in str(caught.value) for name in names if name.startswith(("a-", "b-", "m-F", "m-Q")))


def test_a_missing_part_of_a_split_set_is_noticed() -> None:
    assert pick.choose_gguf(SPLIT[1:], None, "org/m").missing == (SPLIT[0],)


def test_safetensors_come_before_gguf_unless_asked_for() -> None:
    both = ["config.json", "model.safetensors", "m-Q4_K_M.gguf"]
    assert pick.choose_format(both, Ref("hf", "org/m", repo="org/m")) == "safetensors"
    assert pick.choose_format(both, Ref("hf", "org/m", repo="org/m", selector="Q4_K_M")) == "gguf"
    assert pick.choose_format(both, Ref("hf", "org/m-GGUF", repo="org/m-GGUF")) == "gguf"
    with pytest.raises(ModelNotFound, match="formats Tahr loads"):
        pick.choose_format(["pytorch_model.bin"], Ref("hf", "org/m", repo="org/m"))


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": "../x.safetensors"}}'])
def test_a_hostile_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / pick.INDEX).write_text(index)
    with pytest.raises(CorruptFile):
        pick.safetensors_names([], tmp_path)
