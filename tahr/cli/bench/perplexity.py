"""`tahr perplexity`: how surprised a model is by a text, counted as llama-perplexity counts."""

import argparse
import json
from pathlib import Path

from tahr.cli.bench.bench import say, wipe
from tahr.cli.bench.bench_shapes import add_machine, engine, positive
from tahr.cli.terminal.console import note
from tahr.errors import ConfigError
from tahr.regular_file import read_piped

MAX_TEXT_BYTES = 256 << 20
HELP = "measure how well a model predicts a text"

EXAMPLES = """\
examples:
  tahr perplexity model.gguf wiki.test.raw              windows of 512 tokens, the second half of each scored
  tahr perplexity model.gguf notes.txt -c 2048 --chunks 4

Lower is better. Figures compare between files of one model, not between models with different tokenizers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which text, in which windows."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="which model")
    parser.add_argument("file", type=Path, metavar="FILE", help="a text in UTF-8")
    parser.add_argument("-c", "--ctx-size", type=positive, default=512, metavar="N", help="tokens of a window (512)")
    parser.add_argument("--chunks", type=positive, metavar="N", help="windows at most (default: all of the text)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    add_machine(parser)


def run(args: argparse.Namespace) -> int:
    from tahr.backends import open_backend
    from tahr.cli.settings.model_files import find
    from tahr.loading.builder import check_vocabulary, open_tokenizer
    from tahr.loading.memory_plan import check_kv_dtype
    from tahr.models.loader.load import load, open_model
    from tahr.tools.full_logits import FullLogits
    from tahr.tools.perplexity import measure, windows

    config = engine(args)
    text = read(args.file)
    files = find(args.model)
    source = open_model(files.weights, files.directory)
    tokenizer = open_tokenizer(files, source)
    ids = tokenizer.encode(text, parse_special=False)
    adds_bos = ids[:1] == [tokenizer.bos_id]
    cut = windows(ids, args.ctx_size, args.ctx_size // 2 + 1, tokenizer.bos_id if adds_bos else None)[: args.chunks]
    backend = open_backend(config.backend, n_threads=config.n_threads)
    loaded = load(source, backend, quantize=config.quantize)
    check_vocabulary(tokenizer, loaded.config, files.name)
    note(f"{files.name} on {backend.summary}; {len(ids)} tokens, {len(cut)} windows of {args.ctx_size}")
    kv_dtype = check_kv_dtype(config.kv_dtype, backend)
    chunk = config.prefill_chunk_size or backend.step_defaults.prefill_chunk
    logits_of = FullLogits(backend, loaded.decoder, args.ctx_size, kv_dtype, chunk)
    found = measure(logits_of, cut, say)
    wipe()
    if args.json:
        print(json.dumps({"perplexity": found.value, "error": found.error, "n_tokens": found.n_tokens}))
    else:
        print(f"perplexity {found.value:.4f} ± {found.error:.4f} over {found.n_tokens} tokens")
    return 0


def read(path: Path) -> str:
    try:
        return read_piped(path, MAX_TEXT_BYTES).decode()
    except ValueError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error}): convert it first.") from error
