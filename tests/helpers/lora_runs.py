"""Logits of a model with an adapter, without an engine."""

import numpy as np

from lora_files import fill_rows
from model_cases import N_TOKENS, token_ids
from model_runs import Runs
from tahr.backends.api import Backend, Rows
from tahr.models.loader import Loaded
from tahr.models.lora import Adapter, AdapterTarget


def target_of(loaded: Loaded) -> AdapterTarget:
    return AdapterTarget("tiny", loaded.config, loaded.decoder.linears)


def logits(loaded: Loaded, be: Backend, adapter: Adapter | None = None, scale: float = 1.0) -> np.ndarray:
    """Of every token of the text that all cases share."""
    runs = Runs(loaded, be)
    if adapter is None:
        return runs.eager([(0, token_ids())])
    bank = be.lora_bank(loaded.decoder.linears, runs.limits)
    bank.put(1, bank.prepare(adapter.factors))
    for rows in (Rows.TOKENS, Rows.LOGITS):
        fill_rows(bank, rows, [[(1, scale)]] * N_TOKENS)
    with be.adapting(bank):
        return runs.eager([(0, token_ids())])
