"""Memory of the CPU backend that paged matrices share, and the files that it is filled from."""

from tahr import _native as native
from tahr.errors import LoadError
from tahr.offload.homes import N_READERS, SlotArena
from tahr.weights.source import OpenFile, Stamp


class SlotMemory:
    """An arena of slots. Files are known to it by numbers, and what was read of them holds while they stay the same."""

    def __init__(self, arena: SlotArena):
        self.native = new_pager(arena)
        self._numbers: dict[int, int] = {}
        self._files: list[OpenFile] = []  # objects whose ids are the keys
        self._stamps: list[Stamp] = []

    def number_of(self, file: OpenFile) -> int:
        """The number by which the arena knows a file."""
        if id(file) not in self._numbers:
            self._numbers[id(file)] = self.native.add_file(file.descriptor, file.label)
            self._files.append(file)
            self._stamps.append(file.first_stamp)
        return self._numbers[id(file)]

    def begin_step(self) -> None:
        """Drop what an earlier step has left: its failure, and what was read of files that have been written to."""
        self.native.take_failure()
        stamps = [native.file_stamp(file.descriptor) for file in self._files]
        if stamps != self._stamps:
            self.native.forget()
            self._stamps = stamps


def new_pager(arena: SlotArena) -> native.Pager:
    """The native side of an arena, with all its memory."""
    try:
        return native.Pager(
            by_usage=arena.by_usage,
            slot_bytes=arena.slot_bytes,
            n_slots=arena.n_slots,
            n_readers=N_READERS,
            n_ahead=arena.n_ahead,
        )
    except (MemoryError, RuntimeError) as error:  # the latter where no thread can be made
        raise LoadError(
            f"The system does not give the {(arena.n_bytes + arena.read_bytes) / 1e6:.1f} MB or the threads for paged "
            "weights: lower the ram_budget, or end other programs."
        ) from error
