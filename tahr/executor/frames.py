"""Memory of the frames that steps of a model that speaks draw."""

import numpy as np

from tahr.backends.api import Backend, FrameInputs, MemoryLayout, StepInputs, StepLimits
from tahr.backends.sampling.code_draws import CodeDraws
from tahr.kv.pages import pages_for
from tahr.models.decoder import Decoder

PAGE = 16  # tokens of a page: a frame has about as many


def frame_inputs(backend: Backend, decoder: Decoder, limits: StepLimits) -> FrameInputs | None:
    """The arrays of frames for steps within these limits; None for a model without frames."""
    speech = decoder.config.speech
    if not speech:
        return None
    n_codes = decoder.frame_codes
    n_rows = limits.n_rows
    n_pages = pages_for(n_codes, PAGE)
    layout = MemoryLayout(decoder.inner_memory, (n_rows * n_pages,), PAGE, backend.passing_kv_dtype)
    draws = [CodeDraws.empty(n_rows, speech.n_sounds + 1), *[CodeDraws.empty(n_rows) for _ in range(n_codes - 1)]]
    return FrameInputs(
        codes=np.zeros((n_codes, limits.n_tokens), np.int32),
        draws=draws,
        steps=inner_steps(n_rows, n_codes, n_pages),
        kv=backend.kv_store(layout),
    )


def inner_steps(n_rows: int, n_codes: int, n_pages: int) -> list[StepInputs]:
    """Step i computes token i of a text for each row. Only how many rows there are changes from run to run."""
    limits = StepLimits(n_rows, n_rows, n_rows, n_pages, n_tokens_per_seq=1)
    rows = np.arange(n_rows, dtype=np.int32)
    counts = np.zeros(3, np.int32)
    found = []
    for i in range(n_codes):
        step = StepInputs.empty(limits)
        step.positions[:] = i
        step.query_start[1:] = rows + 1
        step.seq_lens[:] = i + 1
        step.page_table[0] = rows[:, None] * n_pages + np.arange(n_pages)
        step.slot_mapping[0] = rows * n_pages * PAGE + i
        step.logit_rows[:] = rows
        found.append(step.counted_by(counts))
    return found
