"""Adapters of a group of ranks: read and checked by the driver, and then by every rank, or by none."""

import json
from pathlib import Path

from tahr.backends.api import HostLoraBank, LoraRows, Rows, StepLimits
from tahr.errors import ExecutorLost, TahrError
from tahr.executor.protocol import PreparedAdapter
from tahr.executor.ranks.group import RankGroup
from tahr.executor.ranks.messages import RankMessage, text_message
from tahr.executor.ranks.program import CLEAR_ADAPTER, PUT_ADAPTER
from tahr.models.decoder import Decoder
from tahr.models.lora import AdapterTarget, open_adapter

PUT_S = 60.0
PUT_BYTES_A_SECOND = 1e7


class GroupAdapters:
    """`AdapterPort` of a group. The driver keeps no factors, only which linears some adapter changes."""

    note = ""

    def __init__(self, group: RankGroup, decoder: Decoder, limits: StepLimits):
        self._group = group
        self._decoder = decoder
        self._bank = HostLoraBank(decoder.linears, limits)
        self._slots: dict[int, PreparedAdapter] = {}

    def prepare(self, path: Path, model_name: str) -> PreparedAdapter:
        decoder = self._decoder
        adapter = open_adapter(path, AdapterTarget(model_name, decoder.config, decoder.targets))
        facts = adapter.digest, adapter.rank, adapter.n_bytes, adapter.base, adapter.notes
        return PreparedAdapter(str(path), *facts, tuple(decoder.factors_of(adapter.factors)))

    def put(self, slot: int, prepared: PreparedAdapter) -> None:
        try:
            self._send(slot, prepared)
        except ExecutorLost:
            raise
        except TahrError:
            self.clear(slot)
            raise
        self._slots[slot] = prepared
        self._bank.grow(prepared.data, prepared.rank)

    def clear(self, slot: int) -> None:
        self._slots.pop(slot, None)
        self._group.call(RankMessage(CLEAR_ADAPTER, (slot,)), PUT_S, "adapter")

    def restore(self) -> None:
        """Give new ranks the adapters that others had."""
        for slot, prepared in self._slots.items():
            self._send(slot, prepared)

    def _send(self, slot: int, prepared: PreparedAdapter) -> None:
        path = str(Path(prepared.path).expanduser().absolute())
        text = json.dumps({"path": path, "digest": prepared.digest})
        limit_s = PUT_S + prepared.n_bytes / PUT_BYTES_A_SECOND
        self._group.call(text_message(PUT_ADAPTER, text, slot), limit_s, "adapter")

    @property
    def plan_key(self) -> tuple[int, ...]:
        return self._bank.plan_key

    def rows(self, rows: Rows) -> LoraRows:
        return self._bank.rows[rows]

    @property
    def all_rows(self) -> list[LoraRows]:
        """The rows of tokens and those of logits."""
        return [self._bank.rows[kind] for kind in (Rows.TOKENS, Rows.LOGITS)]

    def warm_next(self) -> bool:
        return False
