"""Files beside a GGUF are used: generation_config.json, chat templates, tokenizers, and the layers of Ollama models."""

import json
from pathlib import Path

import pytest

from fake_hub import Hub, Registry
from tahr import LLM, EngineConfig
from tahr.cli.main import main
from tahr.errors import CorruptFile, TokenizerError
from tahr.hub.ollama_template import Untranslatable, to_jinja
from tahr.loading import builder
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tokens.tokenizer import Tokenizer
from test_hub import fake, places, registry

__all__ = ["fake", "places", "registry"]  # fixtures

SMALL = EngineConfig(context_size=64, n_threads=1)


def test_files_of_a_repository_are_used(fake: Hub, stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.repos["org/s-GGUF"] = {
        "s-Q4_K_M.gguf": stories.read_bytes(),
        "generation_config.json": json.dumps({"temperature": 0.3, "top_k": 7}).encode(),
        "chat_template.jinja": b"{{ messages[0].content }}!",
    }
    llm = LLM("org/s-GGUF", config=SMALL)
    assert (llm.sampling_defaults.temperature, llm.sampling_defaults.top_k) == (0.3, 7)
    assert llm.render("hi") == "hi!"
    assert main(["run", "org/s-GGUF", "--effective-config-json"]) == 0
    rows = {row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}
    assert rows["sampling.temperature"] == (0.3, "model")


def test_a_tokenizer_beside_serves_where_the_gguf_has_none_we_know(
    fake: Hub, stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repos["org/s-GGUF"] = {"s-Q4_K_M.gguf": stories.read_bytes(), "tokenizer.json": b"{}"}
    own = LLM("org/s-GGUF", config=SMALL).tokenizer

    def unknown(metadata: object) -> Tokenizer:
        raise TokenizerError("The GGUF names a pre-tokenizer nobody knows.")

    requested: list[Path] = []
    monkeypatch.setattr(builder.Tokenizer, "from_gguf", unknown)
    monkeypatch.setattr(builder.Tokenizer, "from_dir", lambda path: requested.append(path) or own)
    assert LLM("org/s-GGUF", config=SMALL).tokenizer is own
    assert (requested[0] / "tokenizer.json").read_bytes() == b"{}"


def test_layers_of_an_ollama_model_are_used(registry: Registry, stories: Path) -> None:
    params = {"temperature": 0.25, "repeat_penalty": 1.2, "stop": ["<end>"], "num_predict": -2, "num_ctx": 4096}
    layers = {
        "model": stories.read_bytes(),
        "params": json.dumps(params).encode(),
        "template": b"{{ if .System }}[{{ .System }}] {{ end }}{{ .Prompt }}> {{ .Response }}\n",
        "system": b"be brief",
    }
    registry.add("library/s", "latest", layers)
    llm = LLM("ollama:s", config=SMALL)
    defaults = llm.sampling_defaults
    assert (defaults.temperature, defaults.repetition_penalty, defaults.stop) == (0.25, 1.2, ("<end>",))
    assert defaults.max_tokens == 2**31 - 1
    assert llm.render("hi") == "[be brief] hi> "
    registry.add("library/bad", "latest", {**layers, "params": b'{"temperature": "hot"}'})
    with pytest.raises(CorruptFile, match="params of the Ollama model"):
        LLM("ollama:bad", config=SMALL)
    registry.add("library/odd", "latest", {**layers, "template": b'{{ template "x" . }}'})
    assert any("not used, because of" in line for line in LLM("ollama:odd", config=SMALL).load_log)


CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
HEADERS = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}<|{{ .Role }}|>
{{ .Content }}<|eot|>{{ if and $last (ne .Role "assistant") }}<|assistant|>
{{ end }}
{{- end }}"""
BRANCHES = """{{- /* a comment */ -}}
{{ range .Messages }}{{ if eq .Role "user" "tool" }}U:{{ .Content }}{{ else if .ToolCalls }}{{ range .ToolCalls -}}
C:{{ json .Function }}{{ end }}{{ else }}A:{{ .Content | json }}{{ end }};{{ end }}
{{- if or .Tools (gt (len .Messages) 9) }}T{{ end }}"""
TALK = [
    {"role": "user", "content": 'a "b" {{ c }}'},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "ok?"},
]


@pytest.mark.parametrize(
    ("source", "system", "expected"),
    [
        (
            CHATML,
            "S",
            '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na "b" {{ c }}<|im_end|>\n'
            "<|im_start|>assistant\nyes<|im_end|>\n"
            "<|im_start|>user\nok?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (HEADERS, "", '<|user|>\na "b" {{ c }}<|eot|><|assistant|>\nyes<|eot|><|user|>\nok?<|eot|><|assistant|>\n'),
        (BRANCHES, "", 'U:a "b" {{ c }};A:"yes";U:ok?;'),
    ],
)
def test_templates_in_go_become_jinja(source: str, system: str, expected: str) -> None:
    assert ChatTemplate(to_jinja(source, system)).render(TALK) == expected


@pytest.mark.parametrize(
    "source",
    [
        *("{{ if .System }}", "{{ end }}", "{{ .Unknown }}", '{{ printf "%d" 3 }}', "{{ (.System }}", "{{ else }}"),
        *("{{ range .Messages }}{{ $x = 3 }}{{ end }}", "{{ .System .Prompt }}", "{{ }}", "{{ $. }}", "{{ ; }}"),
        "x" * 70_000,
    ],
)
def test_what_is_not_translated_is_named(source: str) -> None:
    with pytest.raises(Untranslatable):
        to_jinja(source)
