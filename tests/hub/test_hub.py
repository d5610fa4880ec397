"""Fetching, finding and removing models, against real HTTP servers on this machine and wheels made on the spot."""

from __future__ import annotations

import argparse
import io
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from fake_hub import Hub, Registry, own_places, serve_hub, serve_registry
from tahr import hub
from tahr.errors import ConfigError, DownloadError, ModelNotFound, TahrError, UnsupportedModel
from tahr.hub import hf_cache, store, transfer, web
from tahr.hub.progress import Progress

GGUF = b"GGUF" + os.urandom(5000)
SMALL = {"config.json": b"{}", "tokenizer.json": b'{"model": 1}', "generation_config.json": b"{}"}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_places(monkeypatch, tmp_path)
    monkeypatch.setattr(transfer, "FIRST_RETRY_S", 0.01)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with serve_registry() as server:
        monkeypatch.setenv("TAHR_OLLAMA_REGISTRY", server.url)
        yield server


# --- Hugging Face ---


def test_a_safetensors_repo_is_fetched_once_and_never_its_pickles(fake: Hub) -> None:
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}
    fake.repos["org/m"] = SMALL | {
        "model-00001-of-00002.safetensors": os.urandom(3000),
        "model-00002-of-00002.safetensors": os.urandom(3000),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "pytorch_model.bin": os.urandom(3000),
        "consolidated.safetensors": os.urandom(3000),
    }
    files = hub.resolve("org/m")
    assert files.format == "safetensors"
    assert [path.name for path in files.weights] == sorted(index["weight_map"].values())
    assert files.directory is not None and (files.directory / "tokenizer.json").read_bytes() == SMALL["tokenizer.json"]
    assert all(path.read_bytes() == fake.repos["org/m"][path.name] for path in files.weights)
    assert not any("pytorch" in path or "consolidated" in path for path in fake.paths())
    n_requests = len(fake.requests)
    assert hub.resolve("org/m", offline=True) == files
    assert hub.resolve("org/m") == files
    assert len(fake.requests) == n_requests


def test_other_tools_understand_what_we_wrote(fake: Hub) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir

    fake.repos["org/m"] = SMALL | {"model.safetensors": GGUF}
    files = hub.resolve("org/m")
    before = fake.n_body_bytes
    cache = hf_cache.directory()
    for name in fake.repos["org/m"]:
        theirs = hf_hub_download("org/m", name, cache_dir=cache, endpoint=fake.url)
        assert files.directory is not None and Path(theirs) == files.directory / name
    assert fake.n_body_bytes == before, "huggingface_hub found every file that Tahr fetched"
    (repo,) = scan_cache_dir(cache).repos
    assert repo.repo_id == "org/m" and repo.refs["main"].commit_hash == fake.commit("org/m")


def test_we_understand_what_other_tools_wrote(fake: Hub) -> None:
    from huggingface_hub import hf_hub_download

    fake.repos["org/m"] = SMALL | {"model.safetensors": GGUF}
    for name in fake.repos["org/m"]:
        hf_hub_download("org/m", name, cache_dir=hf_cache.directory(), endpoint=fake.url)
    n_requests = len(fake.requests)
    assert hub.resolve("org/m").weights[0].read_bytes() == GGUF
    assert len(fake.requests) == n_requests


def test_the_quant_is_picked_alike_for_download_and_cache(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {
        "mmproj-F16.gguf": os.urandom(2000),
        "m-F16.gguf": os.urandom(2000),
        "m-Q4_K_M.gguf": GGUF,
        "m-Q8_0.gguf": os.urandom(2000),
    }
    files = hub.resolve("org/m-GGUF")
    assert [path.name for path in files.weights] == ["m-Q4_K_M.gguf"]
    assert not any(name in path for path in fake.paths() for name in ("mmproj", "F16", "Q8_0"))
    n_requests = len(fake.requests)
    assert hub.resolve("hf:org/m-GGUF:q4_k_m").weights == files.weights
    assert len(fake.requests) == n_requests
    assert hub.resolve("org/m-GGUF:Q8_0").weights[0].name == "m-Q8_0.gguf"


def test_a_repo_without_the_default_quant_is_not_fetched_again_and_again(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q8_0.gguf": GGUF, "m-F16.gguf": os.urandom(2000)}
    files = hub.resolve("org/m-GGUF")
    n_requests = len(fake.requests)
    assert hub.resolve("org/m-GGUF") == files and len(fake.requests) == n_requests


def test_all_parts_of_a_split_gguf_are_fetched_in_order(fake: Hub) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    fake.repos["org/m-GGUF"] = {name: os.urandom(1500) for name in reversed(names)}
    files = hub.resolve("org/m-GGUF")
    assert [path.read_bytes() for path in files.weights] == [fake.repos["org/m-GGUF"][name] for name in names]
    files.weights[1].unlink()
    with pytest.raises(ModelNotFound):
        hub.resolve("org/m-GGUF", offline=True)


def test_quantised_shorthand_hits_both_repos(fake: Hub) -> None:
    fake.repos["Qwen/Qwen3-0.6B"] = SMALL | {"model.safetensors": os.urandom(2000)}
    fake.repos["unsloth/Qwen3-0.6B-GGUF"] = {"Qwen3-0.6B-Q4_K_M.gguf": GGUF, "Qwen3-0.6B-Q8_0.gguf": os.urandom(2000)}
    files = hub.resolve("Qwen3-0.6B", quant="Q4_K_M")
    assert files.weights[0].read_bytes() == GGUF
    assert {path.name for path in files.sidecars} == set(SMALL)
    fetched = [path for path in fake.paths("GET") if "/resolve/" in path]
    assert not any("safetensors" in path or "Q8_0" in path for path in fetched)
    n_requests = len(fake.requests)
    assert hub.resolve("Qwen3-0.6B", quant="Q4_K_M") == files and len(fake.requests) == n_requests
    assert [entry.name for entry in hub.list_models()] == ["unsloth/Qwen3-0.6B-GGUF:Q4_K_M"]


def test_a_gguf_alias_goes_on_without_its_tokenizer_repo_and_says_so(fake: Hub) -> None:
    fake.repos["Qwen/Qwen3-8B-GGUF"] = {"Qwen3-8B-Q4_K_M.gguf": GGUF}
    stream = io.StringIO()
    files = hub.resolve("qwen3:8b-q4_k_m", progress=Progress(stream))
    assert files.name == "qwen3:8b-q4_k_m" and files.sidecars == ()
    assert "Qwen/Qwen3-8B" in stream.getvalue()


def test_only_pull_looks_for_a_newer_commit(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    old = hub.resolve("org/m-GGUF")
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF[::-1]}
    assert hub.resolve("org/m-GGUF") == old
    new = hub.pull("org/m-GGUF")
    assert new.weights[0].read_bytes() == GGUF[::-1]
    assert hub.resolve("org/m-GGUF") == new
    n_body_bytes = fake.n_body_bytes
    assert hub.pull("org/m-GGUF") == new and fake.n_body_bytes == n_body_bytes


def test_pull_repairs_a_truncated_file(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    path = hub.resolve("org/m-GGUF").weights[0].resolve()
    path.write_bytes(GGUF[:100])
    assert hub.pull("org/m-GGUF").weights[0].read_bytes() == GGUF


def test_a_revision_is_fetched_and_found_by_its_name(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    commit = fake.commit("org/m-GGUF")
    files = hub.resolve("org/m-GGUF", revision=commit)
    assert hub.resolve(f"org/m-GGUF@{commit}", offline=True).weights == files.weights
    with pytest.raises(ModelNotFound, match="no revision"):
        hub.resolve("org/m-GGUF", revision="nope")


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_gated_repo_needs_the_token_and_the_content_network_never_sees_it(
    fake: Hub, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    fake.gated, fake.token = {"org/m-GGUF"}, "secret"
    with pytest.raises(DownloadError, match="HF_TOKEN"):
        hub.resolve("org/m-GGUF")
    monkeypatch.setenv(variable, "secret")
    assert hub.resolve("org/m-GGUF").weights[0].read_bytes() == GGUF  # the content server refuses a login with 400


def test_unknown_repos_and_no_network_and_offline_are_told_apart(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match="no repository org/none"):
        hub.resolve("org/none")
    n_requests = len(fake.requests)
    with pytest.raises(ModelNotFound, match="not on this machine"):
        hub.resolve("org/none", offline=True)
    with pytest.raises(ModelNotFound, match="not on this machine"):
        hub.resolve("org/none", download=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="not on this machine"):
        hub.resolve("org/none")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        hub.pull("org/none")
    assert len(fake.requests) == n_requests
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="cannot be reached"):
        hub.resolve("org/none")


def test_names_that_point_outside_the_repo_are_refused(fake: Hub, tmp_path: Path) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF, "../../../evil.gguf": GGUF}
    with pytest.raises(DownloadError, match="points outside"):
        hub.resolve("org/m-GGUF")
    assert not list(tmp_path.rglob("evil*"))


def test_a_prebuilt_cache_resolves_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    old, new = (tmp_path / "elsewhere" / "models--org--m" / "snapshots" / (digit * 40) for digit in "ab")
    for snapshot in (old, new):
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors").write_bytes(b"x")
    (new.parents[1] / "refs").mkdir()
    (new.parents[1] / "refs" / "main").write_text("a" * 40)
    assert hub.resolve("org/m").directory == old
    (old / "model.safetensors").unlink()
    assert hub.resolve("org/m").directory == new, "main is incomplete, so another snapshot that is whole serves"


# --- Ollama ---


def test_an_ollama_model_is_fetched_once_with_its_layers(registry: Registry) -> None:
    layers = {"model": GGUF, "template": b"{{ .Prompt }}", "params": b'{"stop": ["x"]}', "license": b"MIT"}
    registry.add("library/llama3.2", "1b", layers)
    files = hub.resolve("ollama:llama3.2:1b")
    assert files.weights[0].read_bytes() == GGUF and files.weights[0].suffix == ".gguf"
    beside = {path.name: path.read_bytes() for path in files.sidecars}
    assert beside == {"template.txt": b"{{ .Prompt }}", "params.json": b'{"stop": ["x"]}', "license.txt": b"MIT"}
    n_requests = len(registry.requests)
    assert hub.resolve("ollama:llama3.2:1b", offline=True) == files and len(registry.requests) == n_requests


def test_an_ollama_tag_that_moved_is_refreshed_by_pull_only(registry: Registry) -> None:
    registry.add("library/m", "latest", {"model": GGUF})
    hub.resolve("ollama:m")
    registry.add("library/m", "latest", {"model": GGUF[::-1]})
    assert hub.resolve("ollama:m").weights[0].read_bytes() == GGUF
    assert hub.pull("ollama:m").weights[0].read_bytes() == GGUF[::-1]
    assert hub.resolve("ollama:m").weights[0].read_bytes() == GGUF[::-1]


def test_what_an_ollama_tag_stood_for_before_it_moved_is_gone(registry: Registry) -> None:
    registry.add("library/m", "latest", {"model": GGUF, "system": b"You are a pirate.", "license": b"MIT"})
    registry.add("library/m", "old", {"model": GGUF})
    kept = hub.pull("ollama:m:old")
    hub.pull("ollama:m")
    registry.add("library/m", "latest", {"model": GGUF[::-1], "license": b"MIT"})
    files = hub.pull("ollama:m")
    assert [path.name for path in files.sidecars] == ["license.txt"]
    assert kept.weights[0].read_bytes() == GGUF
    blobs = store.home() / "ollama" / "blobs"
    assert {path.read_bytes() for path in blobs.iterdir()} == {GGUF, GGUF[::-1], b"MIT"}


def test_concurrent_pulls_of_an_ollama_model_all_succeed(registry: Registry) -> None:
    """Each wants to move its manifest into place, and only one of them is there at a time."""
    data = b"GGUF" + os.urandom(1 << 20)
    registry.add("library/m", "latest", {"model": data, "license": b"MIT"})
    registry.stall_at = 1 << 19
    with ThreadPoolExecutor(3) as pool:
        pulls = [pool.submit(hub.pull, "ollama:m") for _ in range(3)]
        assert registry.stalled.wait(10)
        time.sleep(0.2)  # the others ask for the manifest, and wait
        registry.stall_at = None
        registry.release.set()
        assert all(pull.result(30).weights[0].read_bytes() == data for pull in pulls)
    left = {path.name for path in hub.resolve("ollama:m").weights[0].parent.parent.rglob("*")}
    assert left == {"latest", "manifest.json", "model.gguf", "license.txt"}


def test_a_lock_whose_file_goes_while_it_is_looked_at_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each holder removes the file at its end, which may be between two looks of the next."""
    descriptors, look = [], os.fstat

    def look_late(descriptor: int) -> os.stat_result:
        descriptors.append(descriptor)
        if len(descriptors) == 1:
            (tmp_path / ".model.lock").unlink()
        return look(descriptor)

    monkeypatch.setattr(store.os, "fstat", look_late)
    with store.lock(tmp_path / "model", lambda: None):
        assert (tmp_path / ".model.lock").exists() and len(descriptors) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_ollama_blob_is_checked_and_resumed(registry: Registry) -> None:
    data = b"GGUF" + os.urandom(1 << 20)
    registry.add("library/m", "latest", {"model": data})
    registry.damage = b"GGUG"
    with pytest.raises(DownloadError, match="arrived damaged"):
        hub.resolve("ollama:m")
    assert hub.list_models() == []
    registry.damage, registry.drop_at, registry.n_body_bytes = None, 1 << 19, 0
    assert hub.resolve("ollama:m").weights[0].read_bytes() == data
    assert registry.n_body_bytes == len(data)


def test_ollama_mistakes_are_told_apart(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match="ollama:none:latest"):
        hub.resolve("ollama:none")
    registry.add("library/two", "latest", {"tensor": GGUF})
    with pytest.raises(UnsupportedModel, match="0 GGUF files"):
        hub.resolve("ollama:two")
    registry.add("library/lora", "latest", {"model": GGUF, "adapter": b"x"})
    with pytest.raises(UnsupportedModel, match="adapter"):
        hub.resolve("ollama:lora")
    row = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../x", "size": 3}
    for layers in ([row], [{}], "x", [row | {"size": "many"}]):
        registry.manifests["library/bad"] = {"latest": {"layers": layers}}
        with pytest.raises(TahrError):
            hub.resolve("ollama:bad")
    monkeypatch.setenv("TAHR_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="cannot be reached"):
        hub.resolve("ollama:none")


def test_removing_an_ollama_model_keeps_shared_layers(registry: Registry) -> None:
    registry.add("library/m", "a", {"model": GGUF, "license": b"MIT"})
    registry.add("library/m", "b", {"model": GGUF, "license": b"other"})
    hub.resolve("ollama:m:a")
    kept = hub.resolve("ollama:m:b")
    assert hub.remove("ollama:m:a") == len(b"MIT")
    assert kept.weights[0].read_bytes() == GGUF
    assert hub.remove("ollama:m:b") == len(GGUF) + len(b"other")


# --- listing, removing, the verbs ---


def verb(name: str, *arguments: str) -> int:
    module = import_module(f"tahr.cli.verbs.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert "example" in (parser.epilog or "") and "\n" not in module.HELP
    code = module.run(parser.parse_args(arguments))
    assert isinstance(code, int)
    return code


def test_pull_prints_the_path_alone_and_list_shows_the_rest(fake: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("list") == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "tahr pull" in captured.err
    fake.repos["org/z"] = SMALL | {"model.safetensors": GGUF}
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    fake.repos["org/a"] = SMALL | {"model.safetensors": GGUF[::-1]}
    assert verb("pull", "org/z", "--anyway") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{hub.resolve('org/z').directory}\n" and "100%" in captured.err
    assert verb("pull", "org/m-GGUF", "--anyway") == 0
    assert capsys.readouterr().out == f"{hub.resolve('org/m-GGUF').weights[0]}\n"
    (hf_cache.Repo("org/a").root / "blobs").mkdir(parents=True)
    (hf_cache.Repo("org/a").root / "blobs" / "x.tahr-partial").write_bytes(b"x")
    assert verb("list") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["NAME", "SIZE", "STATUS", "MODIFIED"]
    assert [(row[0], row[3]) for row in rows[1:]] == [
        ("org/m-GGUF:Q4_K_M", "ready"),
        ("org/z", "ready"),
        ("org/a", "incomplete"),
    ]
    assert verb("list", "--json") == 0
    assert [row["size_bytes"] for row in json.loads(capsys.readouterr().out)] == [len(GGUF), len(GGUF), 1]


def test_list_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("list", "--aliases") == 0
    assert "qwen3:8b" in capsys.readouterr().out
    assert verb("list", "--aliases", "--json") == 0
    assert json.loads(capsys.readouterr().out) == hub.ALIASES


def test_rm_asks_and_removes_one_quant_or_all(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF, "m-Q8_0.gguf": GGUF[::-1]}
    hub.resolve("org/m-GGUF:Q4_K_M")
    kept = hub.resolve("org/m-GGUF:Q8_0")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(ConfigError, match="--force"):
        verb("rm", "org/m-GGUF:Q4_K_M")
    assert verb("rm", "org/m-GGUF:Q4_K_M", "--force") == 0
    assert [entry.name for entry in hub.list_models()] == ["org/m-GGUF:Q8_0"]
    assert kept.weights[0].read_bytes() == GGUF[::-1]
    with pytest.raises(ModelNotFound):
        verb("rm", "org/m-GGUF:Q4_K_M", "--force")
    assert verb("rm", "org/m-GGUF:Q8_0", "--force") == 0
    assert not hf_cache.Repo("org/m-GGUF").root.exists()
    with pytest.raises(ModelNotFound, match="tahr list"):
        verb("rm", "org/m-GGUF", "--force")


def test_rm_of_one_revision_does_not_take_the_others(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    for name in ("org/m-GGUF", f"org/m-GGUF@{fake.commit('org/m-GGUF')}"):
        hub.resolve(name)
    with pytest.raises(ConfigError, match="all its revisions"):
        verb("rm", name, "--force")
    assert hub.resolve("org/m-GGUF", download=False)


def test_models_of_one_quant_are_listed_by_names_that_mean_them(fake: Hub) -> None:
    files = {"a-Q4_K_M.gguf": GGUF, "b-Q4_K_M.gguf": GGUF[::-1], "b-Q8_0.gguf": GGUF * 2}
    fake.repos["org/m-GGUF"] = files
    for name in files:
        hub.resolve(f"org/m-GGUF:{name}")
    names = [entry.name for entry in hub.list_models()]
    assert names == ["org/m-GGUF:a-Q4_K_M.gguf", "org/m-GGUF:b-Q4_K_M.gguf", "org/m-GGUF:Q8_0"]
    for name, content in zip(names, files.values(), strict=True):
        assert hub.resolve(name, download=False).weights[0].read_bytes() == content
        assert verb("rm", name, "--force") == 0


def test_a_repository_that_was_moved_and_left_a_link_is_removed(fake: Hub, tmp_path: Path) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    hub.resolve("org/m-GGUF")
    root = hf_cache.Repo("org/m-GGUF").root
    moved = root.rename(tmp_path / "moved")
    root.symlink_to(moved)
    assert hub.remove("org/m-GGUF") >= len(GGUF)
    assert not root.is_symlink() and not moved.exists() and not hub.list_models()


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        ("https://hub/a", "https://hub/b", True),
        ("http://hub/a", "http://hub/b", True),
        ("http://hub/a", "https://hub/b", True),
        ("https://hub/a", "http://hub/b", False),
        ("https://hub/a", "https://other/b", False),
        ("https://hub/a", "https://hub:444/b", False),
    ],
)
def test_credentials_stay_with_their_host_and_on_encrypted_connections(old: str, new: str, keeps: bool) -> None:
    request = urllib.request.Request(old, headers={"Authorization": "Bearer secret"})
    moved = web._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, new)
    assert moved is not None and moved.has_header("Authorization") == keeps
