"""Texts whose pages went to the host or to a disk and came back go on with the same bits."""

from pathlib import Path

import pytest

from echo_executor import EchoExecutor
from engines import engine
from tahr.loading import builder
from tiered import check, disk_of, reply, tiered

PROMPT = [1 + (i * i * 7 + 3 * i) % 200 for i in range(61)]  # 7 pages of 8 and a rest; 3 files of 2


@pytest.fixture(params=["local", "late", "echo"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "echo":
        monkeypatch.setattr(builder, "LocalExecutor", EchoExecutor)
    return request.param == "late"


def test_a_prompt_comes_back_from_a_disk_after_a_restart(stories: Path, tmp_path: Path, late: bool) -> None:
    wanted = reply(engine(stories, late), PROMPT)
    assert wanted[2] == 0
    assert reply(tiered(stories, tmp_path / "kv", late=late), PROMPT) == wanted
    again = tiered(stories, tmp_path / "kv", late=late)
    text, logprobs, n_cached = reply(again, PROMPT)
    assert (text, logprobs) == wanted[:2] and n_cached == 48
    assert disk_of(again).stats.n_read == 3 and disk_of(again).stats.n_damaged == 0


def test_a_prompt_comes_back_from_the_host(stories: Path, late: bool) -> None:
    """Others have taken the pages of the pool meanwhile."""
    wanted = reply(engine(stories, late), PROMPT)
    n_pages = 12
    eng = tiered(
        stories,
        late=late,
        host_bytes=1 << 24,
        kv_bytes=n_pages * engine(stories).scheduler.pools[0].page_bytes,
        context_size=n_pages * 8,
    )
    assert reply(eng, PROMPT) == wanted
    reply(eng, [7, *PROMPT[:-1]], 30)
    text, logprobs, n_cached = reply(eng, PROMPT)
    assert (text, logprobs) == wanted[:2] and n_cached == 56
    check(eng)
