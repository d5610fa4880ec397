"""How a backend takes samples from logits: on the host, where nothing faster is there."""

from collections.abc import Sequence

from tahr.backends.api.device import Device
from tahr.backends.api.tensors import Floats, Ints, Tensor
from tahr.backends.sampling import logprobs, numpy_sampler
from tahr.backends.sampling.sample_rows import Logprobs, Sampled, SampledAtOnce, SampleRows, Words, words


class Sampling(Device):
    """Samples and log-probabilities. All have default bodies."""

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        """Flush, then begin to take samples from the live rows of logits, which may lie in host memory already.

        `backends.sampling.numpy_sampler` says what each parameter means. The order of the stages is fixed, ties go to
        the lower id, and random numbers come from (key, counter). A sample depends on its own row and parameters alone;
        what is wrong with a row is its own error code. Backends agree on every token but for a random number that falls
        within rounding of the border between two. Without any sample, `collect` waits for what was enqueued before.
        """
        return SampledAtOnce(numpy_sampler.sample(self.host_rows(logits), rows))

    def mask_memory(self, n: int, n_words: int) -> Words:
        """Memory for `SampleRows.mask`, from which masks reach the device without another copy."""
        return words(n, n_words)

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        """The samples whose tokens the device does not know before they are collected: no step may refer to them."""
        return ()

    def logprobs(self, logits: Tensor | Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        """Flush, then the log-probability of each token by row `source[i]`, and the `n_top[i]` likeliest there."""
        return logprobs.logprobs(self.host_rows(logits), n_vocab, source, tokens, n_top)

    def host_rows(self, logits: Tensor | Floats) -> Floats:
        """Live rows on the host, wherever they are."""
        return self.read(logits) if isinstance(logits, Tensor) else logits
