"""An executor that is given, and gives, nothing but bytes which another process has decoded.

The engine fills arrays of its own, and those that steps are computed from hold nonsense where a step says nothing.
"""

import atexit
import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from echo_codec import encoded, read
from tahr.backends.api import Bytes, Extras, Floats, FrameInputs, HostPage, LoraRows, Rows, StepInputs, Ticket
from tahr.backends.sampling.sample_rows import LogitEdits, SampledTokens, SampleRows
from tahr.executor.local import LaunchedStep, LocalExecutor
from tahr.executor.output import Output
from tahr.executor.pages import LocalPages
from tahr.executor.protocol import StepRequest, StepResult

NONSENSE = 0x5A5A5A5A  # of no token, page or position
PROGRAM = Path(__file__).with_name("echo_program.py")
EXTRAS = {Extras.ROWS: "row_of", Extras.ROPE: "rope_positions", Extras.TARGETS: "row_target"}
ROOT = Path(__file__).resolve().parents[2]


class Echo:
    """The process that decodes."""

    def __init__(self) -> None:
        pipe, environ = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen([sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, env=environ)
        atexit.register(self._process.kill)

    def __call__(self, value: Any) -> Any:
        """The same, as the other process understood it.

        A call that is interrupted ends the process: its reply would be taken for that of the next call.
        """
        try:
            return read(io.BytesIO(self._sent(encoded(value))))
        except BaseException:
            self._process.kill()
            echo.cache_clear()
            raise

    def _sent(self, content: bytes) -> bytes:
        process = self._process
        assert process.stdin and process.stdout
        process.stdin.write(struct.pack("<q", len(content)) + content)
        process.stdin.flush()
        (n,) = struct.unpack("<q", process.stdout.read(8))
        return process.stdout.read(n)


@cache
def echo() -> Echo:
    return Echo()


class EchoTicket:
    """A ticket whose pages come through the echo."""

    def __init__(self, inner: Ticket, echoed: Callable[[Sequence[HostPage]], Sequence[HostPage]]):
        self._inner = inner
        self._echoed = echoed

    def done(self) -> bool:
        return self._inner.done()

    def collect(self) -> Sequence[HostPage]:
        return self._echoed(self._inner.collect())


class EchoPages(LocalPages):
    """Contents of pages and states pass through bytes too."""

    def read(self, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return list(echo()(super().read(ints(pages), group)))

    def write(self, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        super().write(ints(pages), echo()(list(layers)), group)

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        return EchoTicket(super().store(ints(pages), group), lambda found: self._echoed(found, group))

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        return super().load(ints(pages), group, self._echoed(contents, group))

    def _echoed(self, contents: Sequence[HostPage], group: int) -> Sequence[HostPage]:
        """Other pages on the host with the same bytes."""
        copies = self.blank(len(contents), group)
        for page, copy in zip(contents, copies, strict=True):
            copy.data[:] = echo()(page.data)
        return copies

    def read_states(self, slots: Sequence[int]) -> list[Floats]:
        return list(echo()(super().read_states(ints(slots))))

    def write_states(self, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        super().write_states(ints(slots), echo()(list(layers)))


class EchoAdapters:
    """The adapters of a local executor, whose rows are filled elsewhere."""

    def __init__(self, inner: Any):
        self._inner = inner
        self._rows: dict[Rows, LoraRows] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rows(self, rows: Rows) -> LoraRows:
        if rows not in self._rows:
            there = self._inner.rows(rows)
            self._rows[rows] = LoraRows(*(np.zeros_like(getattr(there, each.name)) for each in fields(there)))
        return self._rows[rows]

    def send(self) -> None:
        """Bring the rows that were filled to those that steps read."""
        for kind, filled in self._rows.items():
            there = self._inner.rows(kind)
            for each in fields(there):
                getattr(there, each.name)[...] = echo()(getattr(filled, each.name))


def own_frames(frames: FrameInputs | None) -> FrameInputs | None:
    """Arrays of the same sizes, which no step reads."""
    if frames is None:
        return None
    draws = [
        replace(
            each,
            params=each.params.copy(),
            codes=each.codes.copy(),
            edits=each.edits and LogitEdits(*map(np.copy, each.edits)),
        )
        for each in frames.draws
    ]
    return FrameInputs(frames.codes.copy(), draws, [frames.steps[0].counted_by(frames.counts.copy())], None)


def frame_arrays(frames: FrameInputs) -> list[Any]:
    edits = frames.draws[0].edits
    assert edits, "first codes are edited"
    return [frames.codes, frames.counts, *(each.params for each in frames.draws), *edits]


class EchoExecutor(LocalExecutor):
    """A local executor behind the echo."""

    n_launched = 0  # steps, of all of them

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._filled: dict[int, StepInputs] = {}
        self.adapters: Any = EchoAdapters(self.adapters)
        self.pages = EchoPages(self.backend, self.kv)
        self.n_echoes = 0

    def inputs(self, model: int = 0) -> StepInputs:
        if model not in self._filled:
            there = super().inputs(model)
            self._filled[model] = replace(StepInputs.empty(there.limits), frames=own_frames(there.frames))
        return self._filled[model]

    def launch(self, step: StepRequest) -> LaunchedStep:
        self.n_echoes += 1
        EchoExecutor.n_launched += 1
        step, live = echo()([step, list(live_arrays(self._filled[step.model], step.extras).values())])
        there = super().inputs(step.model)
        for array in arrays_of(there).values():
            array[...] = NONSENSE
        put(there, live, step.extras)
        self._put_frames(step, there)
        if step.sends_adapter_rows:
            self.adapters.send()
        return super().launch(step)

    def _put_frames(self, step: StepRequest, there: StepInputs) -> None:
        """Frames pass through bytes too, where a step draws some."""
        own = self._filled[step.model].frames
        if own and there.frames and step.output == Output.FRAME:
            sent = echo()([np.array(each) for each in frame_arrays(own)])
            for array, found in zip(frame_arrays(there.frames), sent, strict=True):
                array[...] = found

    def put_rows(self, slots: Sequence[int], rows: Floats, model: int = 0) -> None:
        super().put_rows(*echo()([ints(slots), rows, model]))

    def sample(self, handle: LaunchedStep, rows: SampleRows) -> None:
        super().sample(handle, echo()(rows))

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        return list(echo()(ints(super().host_samples(echo()(rows)))))

    def collect(self, handle: LaunchedStep) -> StepResult:
        found: StepResult = echo()(super().collect(handle))
        return found

    def sample_host_rows(self, logits: Floats, rows: SampleRows) -> SampledTokens:
        found: SampledTokens = echo()(super().sample_host_rows(*echo()([logits, rows])))
        return found


def ints(values: Sequence[int]) -> list[int]:
    return [int(each) for each in values]


def arrays_of(inputs: StepInputs) -> dict[str, np.ndarray]:
    names = [each.name for each in fields(inputs) if isinstance(getattr(inputs, each.name), np.ndarray)]
    return {name: getattr(inputs, name) for name in names}


def live_arrays(inputs: StepInputs, extras: int = 0) -> dict[str, np.ndarray]:
    """What a step says, and no more: entries of tokens, rows and sequences that it has."""
    n, rows, seqs = inputs.n_tokens, inputs.n_rows, inputs.n_seqs
    n_pages = int(inputs.seq_lens[:, :seqs].max(initial=0))
    more = [name for extra, name in EXTRAS.items() if extra & extras]
    return {
        "counts": inputs.counts,
        "ids": inputs.ids[:n],
        "positions": inputs.positions[:n],
        "slot_mapping": inputs.slot_mapping[:, :n],
        "query_start": inputs.query_start[: seqs + 1],
        "seq_lens": inputs.seq_lens[:, :seqs],
        "state_slots": inputs.state_slots[:seqs],
        "page_table": inputs.page_table[:, :seqs, :n_pages],
        "logit_rows": inputs.logit_rows[:rows],
        **{name: getattr(inputs, name)[..., :n] for name in more},
    }


def put(there: StepInputs, live: list[np.ndarray], extras: int = 0) -> None:
    """Write what a step says into the arrays that it is computed from."""
    there.counts[:] = live[0]
    for name, values in zip(live_arrays(there, extras), live, strict=True):
        array = getattr(there, name)
        array[tuple(slice(0, n) for n in values.shape)] = values
