"""The program of a rank: loads its part of a model and computes what the driver says, step by step.

Its arguments are its number, the descriptor and the sizes of the shared memory, the process of the driver and the pipe
that ends with it.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tahr import _native as native
from tahr.backends.api import MemoryLayout, Rows, StepLimits
from tahr.backends.cpu.ranks import CpuRankBackend
from tahr.errors import AdapterError, GenerateError
from tahr.executor.local import LocalExecutor
from tahr.executor.ranks.handshake import hello_of, reopened
from tahr.executor.ranks.messages import BadMessage, RankMessage, read_message, write_message
from tahr.executor.ranks.region import SENT, Region, RegionSizes
from tahr.executor.ranks.replies import RankReply, error_message, reply_message
from tahr.executor.ranks.step_checks import StepFacts
from tahr.executor.ranks.steps import STEP, read_step
from tahr.models.loader.load import OpenedModel, load, sharding_of
from tahr.models.lora import AdapterTarget, open_adapter
from tahr.models.sharding.rules import VOCABULARY
from tahr.models.sharding.virtual import factors_on, whole_linears

HELLO = 0
LOAD = 1
PUT_ADAPTER = 3
CLEAR_ADAPTER = 4
# limits on the lines of the load log that a rank answers with
MOST_LINES = 20
MOST_CHARS = 200
FOREVER_S = 1e9  # the driver knows better when a wait is too long, and ends this process then
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the driver's business: it drains, and ends this process


class Rank:
    """One rank of a model."""

    def __init__(self, region: Region, rank: int):
        self._region = region
        self._rank = rank
        self._kinds: Mapping[int, Callable[[RankMessage], RankReply]] = {
            HELLO: self._open,
            LOAD: self._load,
            STEP: self._step,
            PUT_ADAPTER: self._put_adapter,
            CLEAR_ADAPTER: self._clear_adapter,
        }
        self._started: dict[str, Any] = {}
        self._source: OpenedModel
        self._executor: LocalExecutor
        self._facts: StepFacts
        self._meeting: native.Meeting

    def serve(self) -> None:
        """Answer one message after the other, until the group is given up."""
        words = self._region.words
        number = 0
        while True:
            number += 1
            if words.wait(SENT, number, FOREVER_S):
                return
            place = self._region.reply(self._rank)
            try:
                reply = reply_message(self._answer(number))
            except Exception as error:  # told to the driver, which knows what to do about it
                reply = error_message(error)
            write_message(place, number, reply)
            words.set(self._region.answered(self._rank), number)

    def _answer(self, number: int) -> RankReply:
        message = read_message(self._region.message, number)
        if message.kind not in self._kinds or (message.kind > LOAD and not hasattr(self, "_executor")):
            raise BadMessage(f"A message of kind {message.kind} means nothing to a rank now.")
        return self._kinds[message.kind](message)

    # ---- start ------------------------------------------------------------------------------------------------

    def _open(self, message: RankMessage) -> RankReply:
        """Open the model's files, and say what is here."""
        self._started = json.loads(message.text)
        self._source = reopened(self._started)
        plan = sharding_of(self._source, self._started["n_ranks"])
        return RankReply(json.dumps(hello_of(self._source, plan)))

    def _load(self, message: RankMessage) -> RankReply:
        """Load this rank's part of the weights, and make its part of the memory."""
        given = self._started
        n_ranks = given["n_ranks"]
        plan = sharding_of(self._source, n_ranks)
        self._meeting = self._region.meeting(self._rank, FOREVER_S)
        head_rows = [len(part) for part in plan.shares[VOCABULARY]]
        backend = CpuRankBackend(given["n_threads"][self._rank], self._meeting, head_rows)
        loaded = load(self._source, backend, n_ranks=n_ranks, rank=self._rank)
        decoder = loaded.decoder
        limits = StepLimits(**given["limits"])
        groups = tuple(map(tuple, given["groups"]))
        n_pages = tuple(given["n_pages"])
        layout = MemoryLayout(decoder.memory, n_pages, given["page_size"], given["kv_dtype"], groups)
        kv = backend.kv_store(layout)
        self._executor = LocalExecutor(backend, decoder, kv, limits, given["n_vocab"], given["n_decode_tokens"])
        buckets = self._executor.models[0].buckets
        self._facts = StepFacts(limits, buckets, layout, plan.config.n_vocab)
        whole = whole_linears(plan, self._rank, decoder.linears)
        self._target = AdapterTarget(given["name"], plan.config, whole)
        self._plan = plan
        log = [line[:MOST_CHARS] for line in loaded.log[:MOST_LINES]]
        found = {"n_weight_bytes": loaded.n_weight_bytes, "n_kv_bytes": kv.n_bytes, "log": log}
        return RankReply(json.dumps(found, ensure_ascii=False))

    # ---- steps ------------------------------------------------------------------------------------------------

    def _step(self, message: RankMessage) -> RankReply:
        executor = self._executor
        sends = bool(message.numbers[4:5] == (1,))
        adapter_rows = [executor.adapters.rows(kind) for kind in (Rows.TOKENS, Rows.LOGITS)] if sends else []
        request = read_step(message, executor.inputs(), self._facts, adapter_rows)
        first = self._rank == 0
        result = executor.collect(executor.launch(request._replace(wants_rows=first)))
        if self._meeting.how:
            raise GenerateError("A rank did not come to a meeting.")
        if result.rows is None:
            return RankReply()
        rows = result.rows
        self._region.rows[: rows.size] = rows.reshape(-1)
        return RankReply("", *rows.shape)

    def _put_adapter(self, message: RankMessage) -> RankReply:
        """Read an adapter and put this rank's part of it into a slot."""
        (slot,) = message.numbers
        given = json.loads(message.text)
        adapter = open_adapter(Path(given["path"]), self._target)
        if adapter.digest != given["digest"]:
            raise AdapterError(f"The adapter at {given['path']!r} was changed while it was loaded: load it again.")
        bank = self._executor.adapters.bank
        bank.put(slot, bank.prepare(factors_on(self._plan, self._rank, adapter.factors)))
        return RankReply()

    def _clear_adapter(self, message: RankMessage) -> RankReply:
        (slot,) = message.numbers
        self._executor.adapters.clear(slot)
        return RankReply()


def main(arguments: list[str]) -> int:
    rank, descriptor, sizes, parent, pipe = arguments
    for each in IGNORED:
        signal.signal(each, signal.SIG_IGN)
    if not native.end_with(int(parent), int(pipe)):
        return 1
    region = Region(int(descriptor), RegionSizes(**json.loads(sizes)))
    os.close(int(descriptor))
    Rank(region, int(rank)).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
