"""`LLM` with places behind its pools: asked for by options, alive after a restart, refused in sentences."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tahr import LLM, SamplingParams
from tahr.errors import ConfigError
from tahr.loading import kv_tiers

PROMPT = "Once upon a time there was a little dog who had a red ball. " * 6
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few pages: the model's texts are short."""
    monkeypatch.setattr(kv_tiers, "MOST_TOKENS", 32)


def reply(llm: LLM) -> tuple[str, object, int]:
    """A reply, its log-probabilities, and the prompt's tokens that were not computed."""
    found = llm.generate([PROMPT], PARAMS)[0]
    return found.text, found.logprobs, found.n_cached_tokens


def test_a_prompt_of_yesterday_is_read_from_the_disk(stories: Path, tmp_path: Path) -> None:
    """The same bits as of computing; the load log says what there is."""
    wanted = reply(LLM(stories))
    options = {"kv_disk": str(tmp_path / "kv"), "kv_disk_size": "100m", "kv_host_size": "1m"}
    for n_cached in (0, 96):
        with LLM(stories, **options) as llm:
            assert any("Pages are kept in 0.0 GB of host memory and 0.1 GB in" in line for line in llm.load_log)
            assert reply(llm) == (*wanted[:2], n_cached)


def test_directories_and_files_are_ours_alone(stories: Path, tmp_path: Path) -> None:
    """Names are digests: they say nothing of the texts."""
    folder = tmp_path / "a" / "kv"
    with LLM(stories, kv_disk=str(folder)) as llm:
        reply(llm)
    found = list(folder.rglob("*"))
    assert len(found) > 3
    for path in (folder, *found):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
        assert path == folder or path.name == "lock" or re.fullmatch(r"[0-9a-f]{32}(\.kv)?", path.name)


def test_a_key_seals_files(stories: Path, tmp_path: Path) -> None:
    """With another key, or none, they are another layout's; keys and values cannot be found in them."""
    folder = tmp_path / "kv"
    for name in ("one", "two"):
        (tmp_path / name).write_text(name[0].encode().hex() * 32 + "\n")
        (tmp_path / name).chmod(0o600)
    keys = ["one", "one", "two", None]
    cached = []
    for key in keys:
        with LLM(stories, kv_disk=str(folder), kv_disk_key=str(tmp_path / key) if key else None) as llm:
            cached.append(reply(llm)[2])
    assert cached == [0, 96, 0, 0] and len(list(folder.glob("*/"))) == 3


def test_a_client_reads_nothing_that_another_salt_has_written(stories: Path, tmp_path: Path) -> None:
    for salt, n_cached in (("a", 0), ("b", 0), ("", 0), ("a", 96)):
        with LLM(stories, kv_disk=str(tmp_path / "kv")) as llm:
            params = replace(PARAMS, cache_salt=salt)
            assert llm.generate([PROMPT], params)[0].n_cached_tokens == n_cached


@pytest.mark.parametrize("changed", [{"kv_dtype": "f32"}, {"page_size": 8}, {"quantize": "int8"}])
def test_files_of_another_layout_are_not_read(stories: Path, tmp_path: Path, changed: dict[str, object]) -> None:
    with LLM(stories, kv_disk=str(tmp_path / "kv")) as llm:
        reply(llm)
    wanted = reply(LLM(stories, **changed))
    with LLM(stories, kv_disk=str(tmp_path / "kv"), **changed) as llm:
        assert reply(llm) == wanted and wanted[2] == 0
    assert len(list((tmp_path / "kv").glob("*/"))) == 2


# ---- refusals -----------------------------------------------------------------------------------------------------


def link(folder: Path) -> None:
    (folder.parent / "there").mkdir(0o700)
    folder.symlink_to(folder.parent / "there")


def file(folder: Path) -> None:
    folder.write_text("")


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


@pytest.mark.parametrize(
    ("make", "said"),
    [(link, "it is a link"), (file, "File exists"), (open_to_others, "others than its owner may enter")],
)
def test_odd_directories_are_refused(stories: Path, tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "kv")
    with pytest.raises(ConfigError, match=said):
        LLM(stories, kv_disk=str(tmp_path / "kv"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_disk_size": "1m"}, "m: 8 files of this model"),
        ({"kv_disk_size": "50%"}, "must be a number of bytes"),
        ({"kv_disk_size": "many"}, "kv_disk_size is 'many'"),
        ({"prefix_cache": False}, "leave one of the two out"),
        ({"kv_host_size": "1k"}, "kv_host_size is 1k, but it must be between"),
        ({"kv_host_size": "100000g"}, "which is free here"),
        ({"kv_disk": None, "kv_disk_size": "1g"}, "kv_disk names no directory"),
    ],
)
def test_odd_options_are_refused(
    stories: Path, tmp_path: Path, options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=said):
        LLM(stories, **{"kv_disk": str(tmp_path / "kv"), **options})


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("ab" * 31, 0o600, "holds no key"),
        ("zz" * 32, 0o600, "holds no key"),
        ("ab" * 32, 0o644, "can be read by others"),
        ("a" * 4096, 0o600, "more than 1024 bytes"),
    ],
)
def test_odd_keys_are_refused(stories: Path, tmp_path: Path, content: str, mode: int, said: str) -> None:
    key = tmp_path / "key"
    key.write_text(content)
    key.chmod(mode)
    with pytest.raises(ConfigError, match=said):
        LLM(stories, kv_disk=str(tmp_path / "kv"), kv_disk_key=str(key))
