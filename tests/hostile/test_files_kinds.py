"""Paths that name a pipe or a device: whoever reads one refuses it at once, instead of waiting for what never comes."""

import ast
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lora_files import peft_config
from tahr import hub
from tahr.bench_serve.loads import read_sharegpt
from tahr.cli.bench.bench_gate import read_baseline
from tahr.cli.chat import chat_files
from tahr.cli.settings.grammar_options import text_of
from tahr.cli.settings.settings_layers import read_file
from tahr.cli.settings.tool_options import read_tools
from tahr.config import EngineConfig
from tahr.errors import AdapterError, TahrError
from tahr.hub import names, pick
from tahr.hub.preview import read_config
from tahr.library.transcribing.recordings import blocks_of
from tahr.loading.builder import template_of, tokenizer_at
from tahr.loading.fingerprint import fingerprint_of_files
from tahr.loading.sidecars import read_text
from tahr.models.loader import open_model
from tahr.models.loader.load import is_gguf, read_object
from tahr.models.lora import open_adapter
from tahr.regular_file import open_regular, read_bytes, read_piped, read_start
from tahr.server.observe import request_dumps
from tahr.text.templates.chat import template_for
from tahr.text.tokens.json_vocab import read_dir
from tahr.weights import open_gguf, open_safetensors
from tahr.weights.verify import verify

ROOT = Path(__file__).resolve().parents[2] / "tahr"
NOBODY: Any = None  # an adapter is refused before anyone looks at the model it is for


def make_pipe(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return path


def make_device(path: Path) -> Path:
    """Endless zeros, by a link with an innocent name."""
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/dev/zero")
    return path


def bundle(path: Path) -> Path:
    for name in set(request_dumps.NAMES) - {path.name}:
        (path.parent / name).write_text("{}")
    return path.parent


def peft_folder(path: Path) -> Path:
    if not (config := path.with_name("adapter_config.json")).exists():
        config.write_text(str(peft_config()).replace("'", '"'))
    return path.parent


# Where a path comes in: the name of the file, and what is done with it.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "an adapter": ("a.gguf", lambda path: open_adapter(path, NOBODY)),
    "an adapter's configuration": ("adapter_config.json", lambda path: open_adapter(path.parent, NOBODY)),
    "an adapter's weights": ("adapter_model.safetensors", lambda path: open_adapter(peft_folder(path), NOBODY)),
    "a model's name": ("m.gguf", lambda path: hub.resolve(str(path), download=False)),
    "a model's folder": ("model.safetensors", lambda path: hub.resolve(str(path.parent), download=False)),
    "a GGUF": ("m.gguf", open_gguf),
    "a recording": ("sound.wav", lambda path: list(blocks_of(path))),
    "safetensors": ("m.safetensors", open_safetensors),
    "a model": ("m.gguf", lambda path: open_model([path], None)),
    "a file to verify": ("m.gguf", partial(verify, digest=True)),
    "a file that may be a GGUF": ("m.bin", is_gguf),
    "a model's configuration": ("config.json", partial(read_object, needed=True)),
    "an index": ("model.safetensors.index.json", pick.indexed_names),
    "a tokenizer": ("tokenizer.json", lambda path: tokenizer_at(str(path))),
    "a tokenizer's folder": ("tokenizer.json", lambda path: read_dir(path.parent)),
    "a text beside a model": ("template.txt", read_text),
    "a chat template": ("t.jinja", lambda path: template_of(EngineConfig(chat_template=str(path)), NOBODY)),
    "a grammar": ("g.gbnf", lambda path: text_of("--grammar", str(path))),
    "tools": ("t.json", read_tools),
    "settings": ("tahr.toml", lambda path: read_file(path, print)),
    "a conversation": ("chat.json", chat_files.read),
    "keys and values": ("chat.json.kv", lambda path: chat_files.read_kv(path.with_suffix(""), "", 1 << 20)),
    "a bundle": ("manifest.json", lambda path: request_dumps.read(bundle(path))),
    "a baseline": ("b.json", read_baseline),
    "a dataset": ("d.json", read_sharegpt),
    "any file": ("f", open_regular),
    "any file's bytes": ("f", partial(read_bytes, most_bytes=9)),
    "any file's start": ("f", partial(read_start, n_bytes=9)),
    "a fingerprint": ("f", lambda path: fingerprint_of_files([path])),
}
OPTIONAL = {"a chat template of a folder": "chat_template.jinja", "the names": "names.json", "a preview": "config.json"}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [make_pipe, make_device])
@pytest.mark.parametrize("way", READERS)
def test_what_is_no_regular_file_is_refused_at_once(way: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    name, read = READERS[way]
    path = make(tmp_path / "there" / name)
    with pytest.raises((TahrError, OSError)) as refusal:
        read(path)
    assert isinstance(refusal.value, TahrError) or way.startswith(("any", "a fingerprint"))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [make_pipe, make_device])
def test_what_may_be_missing_is_as_if_it_were_not_there(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OPTIONAL.values():
        make(tmp_path / name)
    monkeypatch.setenv("TAHR_HOME", str(tmp_path))
    assert template_for(tmp_path, NOBODY) is None
    assert names.own_names() == {}
    assert read_config(tmp_path / "config.json") is None


@pytest.mark.timeout(10)
def test_a_file_that_becomes_a_pipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and opening, the name is given to a pipe."""
    pipe, plain = make_pipe(tmp_path / "pipe"), tmp_path / "plain"
    plain.write_text("x")
    before = plain.stat()
    monkeypatch.setattr(Path, "stat", lambda path: before)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(pipe)


def test_a_pipe_of_the_shell_can_hold_a_prompt_of_bounded_size(tmp_path: Path) -> None:
    pipe = make_pipe(tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=("hello",))
    writer.start()
    assert read_piped(pipe, 5) == b"hello"
    writer.join()
    with pytest.raises(OSError, match="more than"):
        read_piped(Path("/dev/zero"), 1 << 16)


NESTED = (
    *("an adapter's configuration", "an adapter's weights", "a model's folder", "a model's configuration", "an index"),
    *("a tokenizer", "a tokenizer's folder", "tools", "settings", "a conversation", "a bundle"),
    *("a baseline", "a dataset"),
)


@pytest.mark.parametrize("opening", ["[", '{"a":', "a = " + "["])
@pytest.mark.parametrize("way", NESTED)
def test_what_is_nested_without_end_is_refused(way: str, opening: str, tmp_path: Path) -> None:
    """As JSON, as TOML, and as neither."""
    name, read = READERS[way]
    path = tmp_path / "there" / name
    path.parent.mkdir()
    path.write_text(opening + opening[-1] * 200_000 if opening.startswith("a") else opening * 200_000)
    with pytest.raises(TahrError) as refusal:
        read(path)
    assert len(str(refusal.value)) < 1000


def test_an_adapter_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="There is no adapter at"):
        open_adapter(make_pipe(tmp_path / "a.gguf"), NOBODY)


# ---- nobody else opens files ----------------------------------------------------------------------------------

# Files of the system or of Tahr itself, and those that are written.
OTHERS = {
    "backends/cpu/processor/info.py", "backends/host/memory.py", "backends/host/energy.py", "backends/cuda/ahead.py",
    "tools/environment.py",
    "cli/bench/bench_serve.py", "cli/main.py", "server/page/routes.py", "regular_file.py",
    "hub/store.py", "hub/transfer.py", "hub/package_index.py", "hub/package_checkpoint.py", "hub/web.py",
    "engine/step_traces.py", "server/status/servers.py", "cli/texts/embed.py", "cli/texts/tts.py",
    "executor/ranks/cpu_time.py", "weights/gguf_write.py",
    "kv/tiers/folders.py", "kv/tiers/janitor.py", "kv/tiers/page_files.py",
    "server/batches/results.py", "server/state/database.py", "server/state/state_file.py", "server/kept/folder.py",
    "server/takeover/giving.py", "server/takeover/taking.py",
}  # fmt: skip
METHODS = {"read_text", "read_bytes"}  # of a `Path`: they take no path


def opens(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value, name) if name in METHODS:
            return not (isinstance(value, ast.Name) and value.id == "regular_file")
        case ast.Attribute(ast.Name("os" | "io"), "open") | ast.Attribute(_, "fromfile" | "memmap" | "FileIO"):
            return True
        case ast.Attribute(_, "open") | ast.Name("open"):
            modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            of_descriptor = call.args and ast.unparse(call.args[0]).startswith("open_regular(")
            return not of_descriptor and any(set(mode) <= set("rwabtx+") for mode in modes)
    return False


def test_files_are_opened_by_one_function() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if str(path.relative_to(ROOT)) not in OTHERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and opens(node)
    }
    assert not found, "read them by tahr.regular_file"
