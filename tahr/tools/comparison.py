"""Two engines taking turns on one model, and the table that comes of it."""

import os
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import asdict, dataclass
from typing import Any

from tahr.backends.api import StepDefaults
from tahr.config import EngineConfig
from tahr.tools.bench import Opened, Result, Shape, open_bench
from tahr.tools.peers import Peer, PeerFailed, Setting, open_peer

ERR = "ERR"
HEAD = ("model", "test", "tahr t/s", "llama.cpp t/s", "ratio", "spread, each")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """One shape on one model by both; `why` says what went wrong where there is no figure of theirs."""

    model: str
    ours: Result
    theirs: Result | None
    peer: str
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times faster Tahr is, by the medians."""
        return self.ours.median / self.theirs.median if self.theirs else None

    def record(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model,
            "test": self.ours.shape.label,
            **asdict(self.ours.shape),
            "tahr_ts": self.ours.median,
            "tahr_reps_ts": self.ours.rates,
            "peer": self.peer,
            "peer_ts": self.theirs.median if self.theirs else None,
            "peer_reps_ts": self.theirs.rates if self.theirs else None,
            "ratio": self.ratio,
            "error": self.why or None,
        }

    def cells(self) -> tuple[str, ...]:
        spread = f"{100 * self.ours.spread:.0f} %"
        ours = (self.model, self.ours.shape.label, f"{self.ours.median:.1f}")
        if self.theirs is None or self.ratio is None:
            return (*ours, f"{ERR}: {self.why}", ERR, spread)
        return (*ours, f"{self.theirs.median:.1f}", f"{self.ratio:.2f}x", f"{spread}, {100 * self.theirs.spread:.0f} %")


def compare(
    model: str,
    config: EngineConfig,
    shapes: list[Shape],
    n_reps: int,
    peer_places: tuple[str | None, str | None],
    say: Say,
) -> list[Compared]:
    """Every shape that the peer can run by both engines, repetition by repetition in turn."""
    say(f"{model}: loading")
    opened = open_bench(model, config, shapes)
    peer, why = found_peer(opened, config, shapes, peer_places)
    try:
        most_seqs = peer.most_seqs if peer else None
        both = [shape for shape in shapes if most_seqs is None or shape.n_seqs <= most_seqs]
        return [one_shape(opened, peer, why, shape, n_reps, say) for shape in both]
    finally:
        if peer:
            peer.close()


def found_peer(
    opened: Opened, config: EngineConfig, shapes: list[Shape], places: tuple[str | None, str | None]
) -> tuple[Peer | None, str]:
    setting = Setting(
        model=opened.files.weights[0],
        n_threads=opened.facts["n_threads"] or os.cpu_count() or 1,
        n_context=max(shape.n_depth + shape.n_prompt + shape.n_gen for shape in shapes),
        n_batch=config.prefill_chunk_size or StepDefaults().prefill_chunk,
        n_seqs=max(shape.n_seqs for shape in shapes),
    )
    try:
        return open_peer(setting, *places), ""
    except PeerFailed as error:
        return None, str(error)


def one_shape(opened: Opened, peer: Peer | None, why: str, shape: Shape, n_reps: int, say: Say) -> Compared:
    """Both engines run once to warm up, then in turn, so that a slow minute slows both."""
    ours: list[float] = []
    theirs: list[float] = []
    for i in range(n_reps + 1):
        say(f"{opened.name} {shape.label}: {i} of {n_reps}")
        ours.append(opened.bench.time(shape))
        if peer and not why:
            try:
                theirs.append(peer.time(shape))
            except PeerFailed as error:
                why = str(error)
    result = None if why else Result(shape, tuple(theirs[1:]))
    return Compared(opened.name, Result(shape, tuple(ours[1:])), result, peer.version if peer else "none", why)


def table(rows: list[Compared]) -> str:
    """Rows under a head, columns aligned; reads as Markdown too."""
    return aligned([HEAD, *(row.cells() for row in rows)])


def aligned(cells: ListOf[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (n + 2) for n in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def matrix(rows: list[Compared]) -> str:
    """Ratios alone: a row for each model, a column for each test."""
    tests = list(dict.fromkeys(row.ours.shape.label for row in rows))
    ratios = {(row.model, row.ours.shape.label): f"{row.ratio:.2f}x" if row.ratio else ERR for row in rows}
    models = dict.fromkeys(row.model for row in rows)
    return aligned([("model", *tests), *((model, *(ratios[model, test] for test in tests)) for model in models)])


def worst_first(rows: list[Compared]) -> str:
    """The shapes with the lowest ratios first: those to work on."""
    known = sorted([(row.ratio, row) for row in rows if row.ratio is not None], key=lambda pair: pair[0])
    return "\n".join(f"  {ratio:.2f}x  {row.model}  {row.ours.shape.label}" for ratio, row in known)
