"""Checks of a prompt's rows, before it is queued."""

from itertools import pairwise

import numpy as np

from tahr.backends.api import N_AXES, Ints
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource
from tahr.errors import ConfigError
from tahr.executor.protocol import DecoderFacts, TowerFacts
from tahr.kv.prefix import HASH_BYTES
from tahr.kv.row_slots import RowSpan


def check_prompt_rows(
    rows: PromptRows, n_prompt: int, facts: DecoderFacts, tower: TowerFacts | None, n_slots: int
) -> None:
    """Refuse rows that no step could read."""
    if not n_slots:
        raise ConfigError("This model reads tokens alone: leave out the rows of images or speech, or load another one.")
    check_spans(rows.spans, n_prompt)
    contents = rows.contents(0)
    if contents.keys() != rows.sources.keys():
        raise ConfigError("Every span of rows needs the source of its digest, and no other source may be there.")
    for span in rows.spans:
        if contents[span.digest] != span.n_content:
            raise ConfigError("Spans of one digest have different numbers of rows: their digests must differ.")
    if sum(contents.values()) > n_slots:
        raise ConfigError(f"The prompt reads {sum(contents.values())} rows, but there is memory for {n_slots}: cut it.")
    for digest, source in rows.sources.items():
        check_source(source, facts.rows.n_each or contents[digest], facts.rows.width, tower)
    if rows.seen_by_all != bool(facts.rows.n_each):
        raise ConfigError("This model reads rows in places of its prompt, which all tokens cannot look at.")
    if rows.rope_positions is not None:
        check_rope(rows.rope_positions, n_prompt, facts)


def check_whole(rows: PromptRows, wants_rows: bool, limits: SchedulerLimits) -> None:
    """Refuse images that are computed in one step, if that cannot hold what is wanted of them."""
    n_most = max((span.rows for span in rows.spans), default=0)
    if not limits.image_rows:
        return
    if n_most > limits.image_rows:
        raise ConfigError(f"An image has {n_most} rows, but a step of this model holds {limits.image_rows}.")
    if wants_rows and n_most > limits.n_row_tokens:
        raise ConfigError("This model gives no probabilities of prompts with images: leave prompt_logprobs out.")


def check_spans(spans: tuple[RowSpan, ...], n_prompt: int) -> None:
    if any(span.rows < 1 or span.begin < 0 or span.end > n_prompt for span in spans):
        raise ConfigError(f"Spans of rows must lie among the {n_prompt} tokens of the prompt, and hold at least one.")
    if any(span.first < 0 or span.first + span.rows > span.n_content for span in spans):
        raise ConfigError("Spans of rows read rows that their content does not have.")
    if any(first.end > second.begin for first, second in pairwise(spans)):
        raise ConfigError("Spans of rows must be in order and may not overlap.")
    if any(len(span.digest) != HASH_BYTES for span in spans):
        raise ConfigError(f"The digest of rows has {HASH_BYTES} bytes.")


def check_source(source: RowSource, n_rows: int, width: int, tower: TowerFacts | None) -> None:
    """Refuse what a tower cannot read or, without one, what are no rows of the model."""
    values = source.values
    is_finite = source.is_finite or np.isfinite(values).all()
    if values.dtype != np.float32 or values.ndim != 2 or not is_finite:
        raise ConfigError("Rows are finite numbers in f32, [n_rows, width].")
    if tower and not source.is_made:
        check_input(source, n_rows, tower)
    elif values.shape != (n_rows, width) or source.outputs is not None:
        raise ConfigError(f"Rows of shape {values.shape} were given; the model reads {n_rows} rows of {width}.")


def check_input(source: RowSource, n_rows: int, tower: TowerFacts) -> None:
    n, width = source.values.shape
    if width != tower.width_in:
        raise ConfigError(f"An input's rows have {width} numbers; those that are read here have {tower.width_in}.")
    if n > tower.limits.n_tokens:
        raise ConfigError(f"An input has {n} rows, but at most {tower.limits.n_tokens} are computed: make it smaller.")
    outputs = np.arange(n) if source.outputs is None else source.outputs
    if outputs.shape != (n_rows,) or not 0 <= outputs.min() <= outputs.max() < n:
        raise ConfigError(f"An input of {n} rows must give {n_rows} rows, each made of some of them.")
    if source.rope_positions is not None and source.rope_positions.shape != (N_AXES, n):
        raise ConfigError(f"Positions of an input have the shape {(N_AXES, n)}.")


def check_rope(positions: Ints, n_prompt: int, facts: DecoderFacts) -> None:
    if not facts.has_axes:
        raise ConfigError("This model's rope knows one position of a token, its place: leave other positions out.")
    if positions.shape != (N_AXES, n_prompt) or positions.min() < 0:
        raise ConfigError(f"Positions for rope have the shape {(N_AXES, n_prompt)} and are not negative.")
