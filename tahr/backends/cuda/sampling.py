"""`Backend.sample` on a CUDA device: one upload, a few kernels, and tokens that stay on the device until collected.

Nothing here waits for the device but `collect`. Samples with parameters that the kernels do not know (typical-p, top-a,
eta, XTC, top-n-sigma, mirostat) are taken on the host, from copies of their rows.
"""

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from threading import Thread

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from tahr.backends.cuda.ahead import Ahead
from tahr.backends.cuda.compiling import compiling
from tahr.backends.cuda.kernels import sample as kernels
from tahr.backends.cuda.logprobs import PendingLogprobs, begin_logprobs, merged
from tahr.backends.sampling import numpy_sampler
from tahr.backends.sampling.sample_rows import OFF, Floats, SampledTokens, SampleRows

HOST_PARAMETERS = ("top_n_sigma", "xtc_probability", "typical_p", "top_a", "eta_cutoff")
ALIGN = 4  # int32 numbers: parts of the upload start at multiples of 16 bytes
N_SAMPLES = 1 << 16  # samples at once
EDITS_AT_ONCE = 256


class HostBuffer:
    """Pinned memory that grows; it may be written again once the samples that use it are collected."""

    def __init__(self, pinned: bool):
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.int32)

    def take(self, n: int) -> torch.Tensor:
        if len(self._memory) < n:
            self._memory = torch.empty(max(n, 2 * len(self._memory), 4096), dtype=torch.int32, pin_memory=self._pinned)
        return self._memory[:n]


class HostBuffers:
    """Buffers of one call of `sample`, to and from the device."""

    def __init__(self, pinned: bool):
        self.sent = HostBuffer(pinned)
        self.tokens = HostBuffer(pinned)
        self.done = torch.cuda.Event() if pinned else None  # the device has written the tokens


@dataclass(frozen=True, slots=True)
class Upload:
    """The parts of an upload: where each begins, in numbers, and what it holds."""

    parts: dict[str, NDArray[np.int32]]

    def begins(self) -> dict[str, int]:
        found = {}
        at = 0
        for name, part in self.parts.items():
            found[name] = at
            at += -(-part.size // ALIGN) * ALIGN
        return found | {"end": at}


class KeptFields:
    """The fields of samples without edits, kept for the next step with the device memory they and masks are sent to.

    While the same requests are sampled, only counters and masks change (and mirostat's mu, which is the host's).
    """

    def __init__(self, rows: SampleRows, device: torch.device):
        self._params = rows.params
        self._source = rows.source
        self._n_logprobs = rows.n_logprobs
        self._masked = rows.masked
        self.host_bound = host_rows(rows)
        mask_rows = np.full(len(rows), -1, np.int32)
        if rows.masked is not None:
            mask_rows[rows.masked] = np.flatnonzero(rows.masked)
        self._fields = fields_of(rows, rows.source, self.host_bound, mask_rows)
        self._there = torch.empty(self._fields.size, dtype=torch.int32, device=device)
        # Pinned, and left as they are until the samples are collected.
        self._masks = None if rows.mask is None else torch.from_numpy(rows.mask.view(np.int32))
        self._masks_there = self._there[:0] if self._masks is None else torch.empty_like(self._masks, device=device)

    def hold(self, rows: SampleRows) -> bool:
        """Whether another step has the same samples, but for their counters and masks."""
        same = rows.params is self._params and rows.source is self._source and rows.masked is self._masked
        return same and rows.n_logprobs is self._n_logprobs

    def send(self, rows: SampleRows, by: HostBuffer) -> tuple[torch.Tensor, torch.Tensor]:
        """Enqueue the fields, with the counters, sources and slots of this step, and the masks; where they will be.

        Without masks, theirs are empty.
        """
        fields = self._fields
        sent = by.take(self._fields.size)
        fields[2] = rows.params["counter"]
        fields[3] = rows.source
        fields[10] = rows.slots
        sent.numpy()[:] = fields.reshape(-1)
        self._there.copy_(sent, non_blocking=True)
        if self._masks is not None:
            self._masks_there.copy_(self._masks, non_blocking=True)
        return self._there, self._masks_there


class CudaSampler:
    """Samples for one device. Buffers are kept in a list of free ones, so that several calls may be in flight."""

    def __init__(self, last_tokens: torch.Tensor):
        self._device = last_tokens.device
        self._last_tokens = last_tokens  # keys are token slots
        self._sampled = torch.empty(N_SAMPLES, dtype=torch.int32, device=self._device)
        self._free: list[HostBuffers] = []
        self._work = torch.empty(0, dtype=torch.int32, device=self._device)
        self._kept: KeptFields | None = None
        self._loader: Thread | None = None
        self._buffers: tuple[tuple[int, ...], list[torch.Tensor]] = ((), [])  # the last sizes, and what they got

    def load_kernels(self, ahead: Ahead) -> None:
        """Begin to load the kernels that are being compiled; their launchers take a second."""
        self._loader = Thread(target=self._load_kernels, args=(ahead,), name="tahr-load-sampling")
        self._loader.start()

    def _load_kernels(self, ahead: Ahead) -> None:
        ahead.wait()
        with suppress(Exception), compiling():  # errors here come again at the launch, where they count
            logits = torch.empty((1, ahead.width), dtype=torch.float32, device=self._device)
            fields = torch.zeros(len(kernels.FIELDS), dtype=torch.int32, device=self._device)
            for masks in (fields[:0], fields):  # without masks, and with them
                self._run(logits, fields, masks, 1, ahead.n_vocab)

    def wait_for_kernels(self) -> None:
        """Return when nothing loads kernels any more."""
        if self._loader:
            self._loader.join()
            self._loader = None

    def sample(self, logits: torch.Tensor, rows: SampleRows) -> "PendingSamples":
        """Enqueue the samples; their tokens go to their token slots too."""
        self.wait_for_kernels()
        n = len(rows)
        assert n <= N_SAMPLES, "these are more samples than there is memory for"
        buffers = self._free.pop() if self._free else HostBuffers(self._device.type == "cuda")
        kept = self._keep(rows) if rows.edits is None else None
        host_bound = kept.host_bound if kept else host_rows(rows)
        host_logits = fetched(logits, rows.source[host_bound], self._device) if host_bound else None
        if len(host_bound) < n:
            if kept:
                self._run(logits, *kept.send(rows, buffers.sent), n, rows.n_vocab)
            else:
                self._launch(logits, rows, host_bound, buffers)
        tokens = buffers.tokens.take(n)
        tokens.copy_(self._sampled[:n], non_blocking=True)
        scores = self._score(logits, rows, scored_rows(rows, host_bound))
        if buffers.done:
            buffers.done.record()
        return PendingSamples(self._free, buffers, tokens, rows, host_bound, host_logits, scores)

    def _score(
        self, logits: torch.Tensor, rows: SampleRows, at: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], PendingLogprobs] | None:
        """Enqueue the log-probabilities of samples just taken; their edits have been taken back."""
        if rows.n_logprobs is None or not len(at):
            return None
        tokens = self._sampled[torch.from_numpy(at).to(self._device, non_blocking=True)]
        return at, begin_logprobs(logits, rows.n_vocab, rows.source[at], tokens, rows.n_logprobs[at])

    def _keep(self, rows: SampleRows) -> KeptFields:
        if self._kept is None or not self._kept.hold(rows):
            self._kept = KeptFields(rows, self._device)
        return self._kept

    def _launch(self, logits: torch.Tensor, rows: SampleRows, host_bound: list[int], buffers: HostBuffers) -> None:
        logits, source = separate(logits, rows)
        upload = Upload(parts_of(rows, source, host_bound))
        begins = upload.begins()
        sent = buffers.sent.take(begins["end"])
        staged = sent.numpy()
        for name, part in upload.parts.items():
            staged[begins[name] : begins[name] + part.size] = part.reshape(-1)
        there = sent.to(self._device, non_blocking=True)
        views = {name: there[begins[name] : begins[name] + part.size] for name, part in upload.parts.items()}
        edits = Edits(logits, views) if views["ids"].numel() else None
        if edits:
            edits.apply()
        self._run(logits, views["rows"], views["masks"], len(rows), rows.n_vocab)
        if edits:
            edits.restore()

    def _run(
        self,
        logits: torch.Tensor,
        fields: torch.Tensor,
        masks: torch.Tensor,
        n: int,
        n_vocab: int,
    ) -> None:
        """Launch the kernels; no sample has a mask where `masks` is empty."""
        sizes = kernels.row_sizes(n, logits.stride(0), n_vocab)
        best, best_at, totals, n_broken, group_best, values, ids, listed = self._sized_buffers(
            n, sizes.n_tiles, sizes.n_groups
        )
        kernels.scan_kernel[(n, sizes.n_tiles)](
            best,
            best_at,
            totals,
            n_broken,
            group_best,
            fields,
            logits,
            masks,
            *sizes,
            *kernels.SCAN_BLOCKS,
            masks.numel() > 0,
            num_warps=kernels.SCAN_WARPS,
        )
        kernels.choose_kernel[(n,)](
            self._sampled,
            self._last_tokens,
            best,
            best_at,
            totals,
            n_broken,
            group_best,
            values,
            ids,
            listed,
            fields,
            logits,
            masks,
            *sizes,
            *sizes.choose_blocks,
            num_warps=kernels.CHOOSE_WARPS,
        )

    def _sized_buffers(self, n: int, n_tiles: int, n_groups: int) -> list[torch.Tensor]:
        """Memory for what the kernels leave each other; the stream keeps one call's use of it apart from the next's."""
        if self._buffers[0] == (n, n_tiles, n_groups):
            return self._buffers[1]
        f32 = torch.float32
        i32 = torch.int32
        n_scan = n * n_tiles
        n_listed = n * kernels.CANDIDATES
        types = [f32, i32, f32, i32, f32, f32, i32, i32]  # the order of `_run`
        sizes = [n_scan, n_scan, n_scan, n_scan, n * n_groups, n_listed, n_listed, n * n_groups]
        padded = [-(-size // ALIGN) * ALIGN for size in sizes]
        if len(self._work) < sum(padded):
            self._work = torch.empty(sum(padded), dtype=i32, device=self._device)
        parts = zip(self._work[: sum(padded)].split(padded), sizes, types, strict=True)
        self._buffers = (n, n_tiles, n_groups), [part[:size].view(dtype) for part, size, dtype in parts]
        return self._buffers[1]


class PendingSamples:
    """Samples whose tokens are on their way to the host."""

    def __init__(
        self,
        free: list[HostBuffers],
        buffers: HostBuffers,
        tokens: torch.Tensor,
        rows: SampleRows,
        host_bound: list[int],
        host_logits: torch.Tensor | None,
        scores: tuple[NDArray[np.intp], PendingLogprobs] | None,
    ):
        self.host_bound = host_bound
        self._free = free
        self._buffers = buffers
        self._tokens = tokens
        self._rows = own(rows, host_bound)
        self._host_logits = host_logits
        self._scores = scores

    def collect(self) -> SampledTokens:
        """Wait for the tokens, and take the samples that are the host's."""
        if self._buffers.done:
            self._buffers.done.synchronize()
        n = len(self._tokens)
        result = SampledTokens(self._tokens.numpy().copy(), np.ones(n))
        self._free.append(self._buffers)
        scores = [(self._scores[0], self._scores[1].collect())] if self._scores else []
        if self._rows is not None and self._host_logits is not None:
            taken = host_sampler()(self._host_logits.numpy(), self._rows)
            result.tokens[self.host_bound] = taken.tokens
            result.probabilities[self.host_bound] = taken.probabilities
            if taken.logprobs is not None:
                scores.append((np.array(self.host_bound), taken.logprobs))
        return result._replace(logprobs=merged(scores, n))


@cache
def host_sampler() -> Callable[[Floats, SampleRows], SampledTokens]:
    """The sampler on the host: native code where it was built, else NumPy, which gives the same tokens."""
    if importlib.util.find_spec("tahr._native") is None:
        return numpy_sampler.sample
    from tahr import _native as native
    from tahr.backends.cpu.processor.isa import choose_isa, choose_threads
    from tahr.backends.cpu.sampling import NativeSampler

    return NativeSampler(choose_isa(), native.Pool(choose_threads(None))).sample


def host_rows(rows: SampleRows) -> list[int]:
    """The samples that the kernels cannot take."""
    params = rows.params
    odd = ~np.isnan(params["mirostat_mu"])
    for name in HOST_PARAMETERS:
        odd |= params[name] != OFF[name]
    odd &= params["temperature"] != 0
    return np.flatnonzero(odd).tolist()


def scored_rows(rows: SampleRows, host_bound: list[int]) -> NDArray[np.intp]:
    """The samples of the kernels whose log-probabilities are asked for."""
    if rows.n_logprobs is None:
        return np.zeros(0, np.intp)
    requested = rows.n_logprobs >= 0
    requested[host_bound] = False
    return np.flatnonzero(requested)


def own(rows: SampleRows, at: list[int]) -> SampleRows | None:
    """Some samples, from rows of logits that were copied in their order; nothing the caller changes later."""
    return replace(rows.take(at), source=np.arange(len(at), dtype=np.int32)) if at else None


def fetched(logits: torch.Tensor, source: NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """Rows on their way to the host."""
    rows = logits[torch.from_numpy(source.astype(np.int64)).to(device, non_blocking=True)].float()
    if device.type != "cuda":
        return rows
    return torch.empty(rows.shape, dtype=torch.float32, pin_memory=True).copy_(rows, non_blocking=True)


def separate(logits: torch.Tensor, rows: SampleRows) -> tuple[torch.Tensor, NDArray[np.int32]]:
    """Rows of logits that may be edited in place: where edited samples share a row, each gets a copy of its own."""
    if rows.edits is None or len(np.unique(rows.source)) == len(rows):
        return logits, rows.source
    at = torch.from_numpy(rows.source.astype(np.int64)).to(logits.device, non_blocking=True)
    return logits[at], np.arange(len(rows), dtype=np.int32)


def parts_of(rows: SampleRows, source: NDArray[np.int32], host_bound: list[int]) -> dict[str, NDArray[np.int32]]:
    """Everything the kernels read but the logits, as int32 arrays."""
    mask_rows, masks = masks_of(rows)
    return {
        "rows": fields_of(rows, source, host_bound, mask_rows),
        "masks": masks,
        **edits_of(rows, source, host_bound),
    }


def fields_of(
    rows: SampleRows, source: NDArray[np.int32], host_bound: list[int], mask_rows: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The fields of the samples: [n_fields, n]."""
    p = rows.params
    fields = np.zeros((len(kernels.FIELDS), len(rows)), np.int32)
    floats = fields.view(np.float32)
    temperature = p["temperature"]
    plain = (p["top_k"] == 0) & (p["min_p"] == 0) & (p["top_p"] == 1)
    kind = np.where(temperature == 0, kernels.GREEDY, np.where(plain, kernels.DRAW_FROM_ALL, kernels.TRUNCATED))
    kind[host_bound] = kernels.ON_HOST
    fields[0], fields[1] = np.ascontiguousarray(p["key"]).view(np.int32).reshape(-1, 2).T
    fields[2] = p["counter"]
    fields[3] = source
    fields[4] = kind
    fields[5] = np.minimum(p["top_k"], rows.n_vocab)
    fields[6] = mask_rows
    fields[10] = rows.slots
    with np.errstate(divide="ignore"):
        # Beyond 1e30 the quotient no longer fits a float, and all but the best weigh nothing long before.
        floats[7] = np.minimum(1 / temperature, 1e30)
        floats[8] = np.log(p["min_p"]) * np.where(p["min_p"] == 0, 1, temperature)
    floats[9] = p["top_p"]
    return fields


def masks_of(rows: SampleRows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which mask each sample has (-1: none), and the masks; the tokens of a blank row are a mask."""
    n_words = -(-rows.n_vocab // 32)
    of_row: dict[int, NDArray[np.uint32]] = {}
    if rows.edits is not None:
        for i in np.flatnonzero(rows.edits.blank).tolist():
            of_row[i] = bits_of(rows.edits.of(i)[0], n_words)
    if rows.mask is not None and rows.masked is not None:
        for i in np.flatnonzero(rows.masked).tolist():
            of_row[i] = rows.mask[i] & of_row[i] if i in of_row else rows.mask[i]
    mask_rows = np.full(len(rows), -1, np.int32)
    mask_rows[list(of_row)] = np.arange(len(of_row))
    masks = np.stack(list(of_row.values())) if of_row else np.zeros((0, n_words), np.uint32)
    return mask_rows, masks.view(np.int32)


def bits_of(ids: NDArray[np.int32], n_words: int) -> NDArray[np.uint32]:
    """A mask that allows some tokens."""
    words = np.zeros(n_words, np.uint32)
    known = ids[ids < 32 * n_words]
    np.bitwise_or.at(words, known // 32, np.uint32(1) << (known % 32).astype(np.uint32))
    return words


def edits_of(rows: SampleRows, source: NDArray[np.int32], host_bound: list[int]) -> dict[str, NDArray[np.int32]]:
    """The edits of the samples that the kernels take, each with the row of logits it changes."""
    if rows.edits is None:
        none = np.zeros(0, np.int32)
        return {"sources": none, "ids": none, "before": none, "penalty": none, "after": none}
    begins, ids, *values, _ = rows.edits
    counts = np.diff(begins)
    taken = np.ones(len(rows), bool)
    taken[host_bound] = False
    kept = np.repeat(taken, counts) & (ids < rows.n_vocab)
    before, penalty, after = (column[kept].view(np.int32) for column in values)
    sources = np.repeat(source, counts)[kept]
    return {"sources": sources, "ids": ids[kept], "before": before, "penalty": penalty, "after": after}


class Edits:
    """Edits made in place and taken back: rows of logits are many megabytes, edits a few kilobytes."""

    def __init__(self, logits: torch.Tensor, views: dict[str, torch.Tensor]):
        self._logits = logits
        self._views = views
        self._n = views["ids"].numel()
        self._saved = torch.empty(self._n, dtype=logits.dtype, device=logits.device)
        self._grid = (triton.cdiv(self._n, EDITS_AT_ONCE),)

    def apply(self) -> None:
        v = self._views
        f32 = torch.float32
        kernels.edit_kernel[self._grid](
            self._logits,
            self._saved,
            v["sources"],
            v["ids"],
            v["before"].view(f32),
            v["penalty"].view(f32),
            v["after"].view(f32),
            self._logits.stride(0),
            self._n,
            EDITS_AT_ONCE,
        )

    def restore(self) -> None:
        v = self._views
        kernels.restore_kernel[self._grid](
            self._logits, self._saved, v["sources"], v["ids"], self._logits.stride(0), self._n, EDITS_AT_ONCE
        )
