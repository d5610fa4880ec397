"""A text that an engine speaks: frames as they are drawn, part by part."""

from collections import deque
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tahr.backends.api import Floats, Ints
from tahr.engine.engine import Engine
from tahr.engine.sequences.frames import Frames
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows, RowSource, spans_of
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import GenerateError
from tahr.kv.prefix import HASH_BYTES
from tahr.library.speaking.planning import SpeakPlan, SpokenPart

LENGTH = "length"
SILENCE = "silence"
STOP = "stop"


class FramePiece(NamedTuple):
    """Some frames of a part, in order."""

    part: int
    codes: Ints  # [n, n_codes]


class SpeakJob:
    """Runs on the thread that steps the engine: `advance` after each step. Pieces are taken from `pieces`."""

    def __init__(self, engine: Engine, plan: SpeakPlan, chunk_frames: int, salt: str = ""):
        self.pieces: deque[FramePiece] = deque()
        self.finished = False
        self.n_frames = 0
        self.reason = STOP  # why the last part ended
        self._engine = engine
        self._plan = plan
        self._chunk = chunk_frames
        self._salt = salt
        self._part = -1
        self._sequence: Sequence | None = None
        self._frames: Frames | None = None
        self._n_passed = 0  # frames of the part that are in pieces
        self._drawn: Ints | None = None  # codes of the last step

    def start(self) -> None:
        """Begin with the first part."""
        self._next_part()

    def advance(self) -> None:
        """Go on with what the last step brought."""
        seq = self._sequence
        if seq is None:
            return
        if seq.result.error:
            raise seq.result.error
        if self._drawn is not None:
            drawn = self._drawn
            self._drawn = None
            self._take(seq, drawn)

    def stop_part(self, part: int, reason: str = SILENCE) -> None:
        """Nothing more of a part is wanted."""
        if part == self._part and not self.finished:
            self._end_part(reason)

    def close(self) -> None:
        """Stop, and free what it holds."""
        self.finished = True
        self._leave()

    def _take(self, seq: Sequence, codes: Ints) -> None:
        frames = self._frames
        assert frames
        part = self._plan.parts[self._part]
        if codes.min() < 0:
            raise GenerateError("The model's numbers are not finite: its files are damaged, or too coarsely quantised.")
        if codes[0] == frames.facts.n_sounds:
            self._end_part(STOP)
            return
        frames.append(codes.tolist())
        self.n_frames += 1
        n = frames.n_drawn
        if n >= part.most_frames or len(seq.tokens) + 1 >= self._engine.context_size:
            self._end_part(LENGTH)
            return
        if n - self._n_passed >= self._chunk:
            self._pass_on()
        later = part.prompt.later
        self._engine.scheduler.extend(seq, [later[n - 1] if n <= len(later) else part.padding])

    def _pass_on(self) -> None:
        """Make a piece of the frames that are in none."""
        assert self._frames
        codes = np.array(self._frames.drawn(self._n_passed))
        if len(codes):
            self.pieces.append(FramePiece(self._part, codes))
        self._n_passed += len(codes)

    def _end_part(self, reason: str) -> None:
        self.reason = reason
        self._pass_on()
        self._leave()
        self._next_part()

    def _next_part(self) -> None:
        self._part += 1
        if self._part == len(self._plan.parts):
            self.finished = True
            return
        part = self._plan.parts[self._part]
        self._frames = Frames(self._engine.facts.frames, part.prompt.codes, self._plan.sampling)
        self._n_passed = 0
        rows = self._voice_rows(part)
        self._sequence = self._engine.submit_frames(part.prompt.tokens, self._frames, self._sink, rows, self._salt)

    def _sink(self, rows: Floats) -> None:
        self._drawn = np.array(rows[-1], np.int32)

    def _voice_rows(self, part: SpokenPart) -> PromptRows:
        vector = self._plan.vector
        if vector is None:
            return NO_ROWS
        digest = blake2b(vector.tobytes(), digest_size=HASH_BYTES).digest()
        return PromptRows(tuple(spans_of(part.prompt.voice_at, digest, 1)), {digest: RowSource(vector[None])})

    def _leave(self) -> None:
        if self._sequence:
            self._engine.abort(self._sequence)
            self._sequence = None
