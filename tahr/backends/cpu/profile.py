"""Times the ops of tapes. See `tahr.backends.host.profile`."""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from tahr import _native as native
from tahr.backends.host.profile import Label, Profile, TimedOp, product_name, profile_of_process


class TapeOp(NamedTuple):
    """An op of a tape, and the address of the number of its rows; 0: not known."""

    label: Label
    n_rows_at: int = 0


class TimedTape:
    """A tape that remembers what its ops are and books their time."""

    def __init__(self, isa: str, profile: Profile):
        self._tape = native.Tape(isa)
        self._profile = profile
        self._ops: list[TapeOp] = []

    def __getattr__(self, op: str) -> Callable[..., Any]:
        record = getattr(self._tape, op)

        def add(**values: Any) -> None:
            record(**values)
            self._ops += [tape_op(op, values)] * (len(self._tape) - len(self._ops))

        return add

    def __len__(self) -> int:
        return len(self._tape)

    @property
    def address(self) -> int:
        """The tape itself: what native code runs is not booked."""
        return self._tape.address

    def clear(self) -> None:
        self._tape.clear()
        self._ops.clear()

    def run(self, pool: native.Pool) -> None:
        if not self._ops:
            return
        self._profile.begin()
        spent = self._tape.run_timed(pool)
        n_rows = [number_at(op.n_rows_at) for op in self._ops]
        timed = [TimedOp(op.label, *each) for op, *each in zip(self._ops, spent, n_rows, strict=True)]
        n_tokens = next((n for n, op in zip(n_rows, self._ops, strict=True) if op.n_rows_at), 0)
        self._profile.book(n_tokens, timed)


def number_at(address: int) -> int:
    return ctypes.c_int32.from_address(address).value if address else 0


def tape_op(op: str, values: dict[str, Any]) -> TapeOp:
    """Products by format and shape, everything else by the name of the op."""
    matrices = [job[0] for job in values.get("jobs", ())]
    if not matrices:
        return TapeOp(Label(op), values.get("n_rows", 0))
    heights = [m.shape[1] for m in matrices]
    name = product_name(op, [m.format for m in matrices], heights, matrices[0].shape[2])
    if op != "linear":  # the step decides whose matrices experts read
        return TapeOp(Label(name))
    n_ops = sum(2 * m.shape[1] * m.shape[2] for m in matrices)
    return TapeOp(Label(name, sum(m.n_bytes for m in matrices), n_ops), values["n_rows"])


def timed_tape(isa: str) -> native.Tape:
    """A tape whose ops count in the profile of the process."""
    return cast(native.Tape, TimedTape(isa, profile_of_process()))
