"""The adapters of a local executor: read, checked, and put into the slots of the backend's bank."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from tahr.backends.api import Backend, LoraBank, LoraRows, Rows
from tahr.executor.adapter_warming import warmed_steps
from tahr.executor.plans import ExecutedDecoder
from tahr.executor.protocol import PreparedAdapter
from tahr.models.lora import Adapter, AdapterTarget, open_adapter


class LocalAdapters:
    """The bank of adapters of one model; it is made when the first one is prepared."""

    def __init__(self, backend: Backend, model: ExecutedDecoder):
        self._backend = backend
        self._model = model
        self._bank: LoraBank | None = None
        self._making = Lock()
        self._warming: Iterator[bool] = warmed_steps(backend, model)

    @property
    def bank(self) -> LoraBank:
        if self._bank is None:
            with self._making:  # adapters are read on any thread, several at once
                limits = self._model.inputs.limits
                linears = self._model.decoder.linears
                self._bank = self._bank or self._backend.lora_bank(linears, limits)
        return self._bank

    @property
    def is_used(self) -> bool:
        """Whether there is a bank."""
        return self._bank is not None

    def prepare(self, path: Path, model_name: str) -> PreparedAdapter:
        """Read an adapter and check that it fits the model."""
        decoder = self._model.decoder
        adapter = open_adapter(path, AdapterTarget(model_name, decoder.config, decoder.targets))
        return self.bring(adapter, str(path))

    def bring(self, adapter: Adapter, path: str = "") -> PreparedAdapter:
        """Bring an adapter that was read into the backend's memory."""
        facts = adapter.digest, adapter.rank, adapter.n_bytes, adapter.base, adapter.notes
        factors = self._model.decoder.factors_of(adapter.factors)
        return PreparedAdapter(path, *facts, self.bank.prepare(factors))

    def put(self, slot: int, prepared: PreparedAdapter) -> None:
        self.bank.put(slot, prepared.data)

    def clear(self, slot: int) -> None:
        self.bank.clear(slot)

    @property
    def plan_key(self) -> tuple[int, ...]:
        return self.bank.plan_key

    @property
    def note(self) -> str:
        return self.bank.note

    def rows(self, rows: Rows) -> LoraRows:
        return self.bank.rows[rows]

    def warm_next(self) -> bool:
        return next(self._warming, False)
