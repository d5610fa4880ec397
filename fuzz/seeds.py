"""Writes what each target of the fuzzer is meant for into fuzz/corpus: small, whole and ordinary inputs.

usage: python fuzz/seeds.py      needs Pillow; what is there already stays
"""

import json
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests/helpers"))

from gguf_maker import Gguf, Stored, Typed, safetensors  # noqa: E402
from sounds import extensible, format_of, riff  # noqa: E402
from tiny_vocabulary import tiny  # noqa: E402

CHAT_TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{{ bos_token }}",
    "tools": (
        "{%- macro args(a) %}{{ a | tojson(indent=2) }}{% endmacro %}{%- set ns = namespace(last=none) %}"
        "{%- for m in messages[::-1] %}{%- if m.tool_calls is defined %}{%- set ns.last = loop.index0 %}"
        "{{ args(m.tool_calls[0].function.arguments) }}{%- elif m['content'] is string %}"
        "{{ m['content'].split('</think>')[-1].lstrip('\\n') | trim | upper }}{%- endif %}{%- endfor %}"
        "{{ raise_exception('no') if ns.last is none else strftime_now('%Y') }}"
    ),
}
GRAMMARS = {
    "list": 'root ::= item ("," ws item)* \nitem ::= [a-z0-9_]{1,8} | "\\u00e9\\x41" # an item\nws ::= [ \\t\\n]?',
    "json": (
        'root ::= value\nvalue ::= object | array | string | "true"\nobject ::= "{" (pair ("," pair)*)? "}"\n'
        'pair ::= string ":" value\narray ::= "[" (value ("," value)*)? "]"\nstring ::= "\\"" [^"\\\\]* "\\""'
    ),
}
SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x", None]}, "c": {"pattern": "^a+$"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "references": {
        "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}},
        "anyOf": [{"$ref": "#/$defs/node"}, {"type": ["string", "null"], "format": "date-time", "maxLength": 9}],
        "items": {"allOf": [{"minItems": 1}, {"prefixItems": [{"const": 1}]}]},
    },
}
BODIES = {
    "plain": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True},
    "tools": {
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "logit_bias": {"5": -100},
        "temperature": 0.5,
        "seed": 1,
        "stop": ["a"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
    },
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 5,
            "content": "<s>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}},
    },
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "c": 4}, "merges": [["a", "b"]]},
}


def main() -> None:
    numbers = np.arange(32, dtype="<f4").tobytes()
    words = {f"general.{name}": typed(value) for name, value in {"architecture": "llama", "alignment": 32}.items()}
    vocabulary = words | {name: typed(value) for name, value in tiny().items()}
    write("gguf", "plain", Gguf(words, [Stored("a", [8, 4], 0, numbers)]).to_bytes())
    write("gguf", "vocabulary", Gguf(vocabulary).to_bytes())
    write("safetensors", "plain", safetensors({"a": ("F32", [4, 8], numbers)}, {"format": "pt"}))
    write("tokenizer_json", "bytes", json.dumps(TOKENIZER).encode())
    unigram = TOKENIZER | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}}
    write("tokenizer_json", "unigram", json.dumps(unigram).encode())
    for target, seeds in {"chat_template": CHAT_TEMPLATES, "gbnf": GRAMMARS}.items():
        for name, text in seeds.items():
            write(target, name, text.encode())
    for target, trees in {"json_schema": SCHEMAS, "chat_body": BODIES}.items():
        for name, tree in trees.items():
            write(target, name, json.dumps(tree).encode())
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        write("image", kind.lower(), picture(kind))
    write("wav", "pcm", riff(format_of(1, 2, 8000, 16), numbers))
    write("wav", "float", riff(extensible(3, 1, 16000, 32), numbers, before=b"LIST\x04\0\0\0abcd"))


def typed(value: object) -> Typed:
    """Metadata of a GGUF file."""
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    if isinstance(value, list):
        return Typed(f"[{kinds[type(value[0])]}]", value)
    return Typed(kinds[type(value)], value)


def picture(kind: str) -> bytes:
    out = BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(out, kind)
    return out.getvalue()


def write(target: str, name: str, data: bytes) -> None:
    path = HERE / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(data)


if __name__ == "__main__":
    main()
