"""Runs a drafter entry by entry, without an engine; and one that has learned a little of a model's texts."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from backends_here import kv_store
from drafter_files import TAPS, make_arrays, speculators, write_drafter
from engines import alone, greedy, here, loaded
from folders import new_folder
from model_cases import Arrays, Config
from tahr.backends.api import Backend, Extras, StepInputs, StepLimits
from tahr.loading.speculation import Draft
from tahr.models.decoder import Decoder
from tahr.models.loader.drafters import LoadedDrafter, load_drafter
from tahr.models.loader.load import open_model

PAGE_SIZE, N_MOST = 8, 512


class DrafterRuns:
    """One text; the row of position p lies in slot p."""

    def __init__(self, found: LoadedDrafter, backend: Backend):
        self.drafter, self.backend = found.drafter, backend
        n_pages = N_MOST // PAGE_SIZE
        self.kv = kv_store(backend, self.drafter.memory, [n_pages], PAGE_SIZE, "f32")
        extras = int(Extras.ROWS | Extras.TARGETS)
        self.limits = StepLimits(N_MOST, 1, N_MOST, n_pages, extras=extras)
        self.store = backend.row_store(N_MOST + 1, self.drafter.row_width)

    def follow(self, begin: int, ids: list[int], rows: np.ndarray) -> np.ndarray:
        """Logits of entries that read these rows."""
        self.backend.write_rows(self.store, range(begin, begin + len(ids)), rows)
        step = self._step(begin, ids)
        return np.array(self.backend.read(self.drafter.follow(self.backend, step, self.kv)))

    def chain(self, begin: int, token: int) -> np.ndarray:
        """Logits of an entry that reads the row which the one before it made."""
        step = self._step(begin, [token])
        return np.array(self.backend.read(self.drafter.chain(self.backend, step, self.kv)))[0]

    def _step(self, begin: int, ids: list[int]) -> StepInputs:
        step = replace(self.backend.step_inputs(self.limits), rows=self.store, target_rows=self.store)
        fill(step, begin, ids)
        step.row_of[: len(ids)] = np.arange(begin, begin + len(ids))
        step.row_target[: len(ids)] = -1
        step.row_target[len(ids) - 1] = begin + len(ids)
        return step


def fill(step: StepInputs, begin: int, ids: list[int]) -> None:
    n = len(ids)
    step.ids[:n], step.positions[:n] = ids, np.arange(begin, begin + n)
    step.slot_mapping[:, :n] = np.arange(begin, begin + n)
    step.page_table[:, 0] = np.arange(step.page_table.shape[2])
    step.query_start[:2], step.seq_lens[:, 0] = (0, n), begin + n
    step.logit_rows[:n], step.counts[:] = np.arange(n), (n, n, 1)


def tapped_rows(decoder: Decoder, backend: Backend, ids: list[int], taps: list[int]) -> np.ndarray:
    """What some layers of a model are given."""
    n_pages = N_MOST // PAGE_SIZE
    kv = kv_store(backend, decoder.memory, [n_pages], PAGE_SIZE, "f32")
    limits = StepLimits(N_MOST, 1, N_MOST, n_pages, extras=int(Extras.TARGETS))
    store = backend.row_store(N_MOST, len(taps) * decoder.config.width)
    step = replace(backend.step_inputs(limits), target_rows=store)
    fill(step, 0, ids)
    step.row_target[: len(ids)] = np.arange(len(ids))
    backend.read(decoder.tapped(taps)(backend, step, kv))
    return np.array(backend.read_rows(store, range(len(ids))))


# ---- a drafter for the small model of the tests -----------------------------------------------------------------


def config_for(decoder: Decoder, **more: Any) -> Config:
    """A drafter beside a small llama."""
    cfg = decoder.config
    layers = {
        "model_type": "llama", "hidden_size": cfg.width, "intermediate_size": 2 * cfg.width, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": cfg.width // 4, "vocab_size": cfg.n_vocab,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "max_position_embeddings": 512,
    }  # fmt: skip
    return speculators(layers, **{"draft_vocab_size": cfg.n_vocab, **more})


def tokens_of(path: Path) -> list[list[int]]:
    """Texts that the model itself says after its first words."""
    tokenizer = loaded(path)[1]
    starts = ("Once upon a time", "The little dog", "Lily and Tom went to the park", "One day, a boy named Tim")
    prompts = [tokenizer.encode(start) for start in starts]
    return [prompt + alone(path, prompt, greedy(160)) for prompt in prompts]


@cache
def taught_draft(path: Path) -> Draft:
    """The same, loaded."""
    found = load_drafter(open_model([], taught(path)), here(), loaded(path)[0].decoder)
    return Draft("taught", found.drafter, found.n_weight_bytes, found.tokens)


@cache
def taught(path: Path) -> Path:
    """A drafter whose layer is random and whose head is fitted to what the model says: it is right now and then.

    It may guess the tokens that these texts have, so that it needs a map.
    """
    decoder, backend = loaded(path)[0].decoder, here()
    texts = tokens_of(path)
    known = sorted({token for text in texts for token in text})
    config = config_for(decoder, draft_vocab_size=len(known))
    arrays = make_arrays(config)
    del arrays["embed_tokens.weight"]  # that of the model
    # A head of ones gives its input out, as far as the vocabulary is large enough.
    width = decoder.config.width
    ones = {**arrays, "lm_head.weight": np.eye(decoder.config.n_vocab, width, dtype=np.float32)}
    probe = write_drafter(new_folder("drafter") / "probe", config_for(decoder), ones)
    runs = DrafterRuns(load_drafter(open_model([], probe), backend, decoder), backend)
    made, following = [], []
    for text in texts:
        rows = tapped_rows(decoder, backend, text, TAPS)
        made.append(runs.follow(0, text[1:-1], rows[: len(text) - 2])[:, :width])
        following += [known.index(token) for token in text[2:]]
    return write_taught(config, arrays, np.concatenate(made), following, known)


def write_taught(config: Config, arrays: Arrays, made: np.ndarray, following: list[int], known: list[int]) -> Path:
    """The drafter with the head that says best what followed."""
    wanted = np.eye(len(known), dtype=np.float32)[following]
    inverse = np.linalg.inv(made.T @ made + 0.01 * len(made) * np.eye(made.shape[1]))
    arrays["lm_head.weight"] = (30 * (inverse @ made.T @ wanted).T).astype(np.float32)
    return write_drafter(new_folder("drafter") / "taught", config, arrays, np.array(known) - np.arange(len(known)))
