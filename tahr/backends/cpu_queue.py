"""What the CPU backend has been asked to do: a tape of ops, and everything the ops point at."""

from tahr import _native as native
from tahr.backends.api import StepInputs, Tensor, Weight
from tahr.backends.cpu_memory import Arena
from tahr.errors import GenerateError


class Queue:
    """Ops waiting to be run, with everything their structs point at."""

    def __init__(self, isa: str):
        self.tape = native.Tape(isa)
        self.arena = Arena()
        self.kept: dict[int, object] = {}
        self.tables: list[tuple[StepInputs, Weight]] = []

    def keep(self, thing: object) -> None:
        """Keep something alive as long as an op may look at it."""
        self.kept[id(thing)] = thing

    def run(self, pool: native.Pool) -> None:
        for step, table in self.tables:
            check_ids(step, table)
        self.tape.run(pool)

    def clear(self) -> None:
        self.tape.clear()
        self.kept.clear()
        self.tables.clear()


def check_ids(step: StepInputs, table: Weight) -> None:
    """The kernel reads whatever row it is told to, so ids are looked at before every run."""
    ids = step.ids[: step.n_tokens]
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < table.n_rows:
        raise GenerateError(
            f"A token id is outside of the model's {table.n_rows} embeddings: the lowest is {ids.min()}, the highest "
            f"{ids.max()}. The tokenizer does not belong to this model."
        )


class CpuPlan:
    """A kept queue."""

    def __init__(self, queue: Queue, pool: native.Pool, result: Tensor):
        self.result = result
        self._queue, self._pool = queue, pool

    def run(self) -> None:
        self._queue.run(self._pool)
