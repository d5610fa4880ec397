"""How a backend adds adapters to linears: on the host, where it has no kernels for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tahr.backends.api.lora import MAX_STACK, HostLoraBank, LinearShape, LoraBank
from tahr.backends.api.ops import Ops
from tahr.backends.api.step import StepLimits
from tahr.backends.api.tensors import Linear, Tensor


class Adapting(Ops):
    """Adapters of linears. The default bodies read rows, multiply them on the host and add what comes out."""

    lora: LoraBank | None = None  # the adapters that linears add at present, see `adapting`

    def lora_bank(self, shapes: Mapping[str, LinearShape], limits: StepLimits) -> LoraBank:
        """A bank for adapters of the linears of these names, in steps within `limits`."""
        self.check_host_body(True, "linears that add adapters")
        return HostLoraBank(shapes, limits)

    @contextmanager
    def adapting(self, bank: LoraBank, n_rounds: int = MAX_STACK) -> Iterator[None]:
        """Within, a linear adds to its rows what their adapters add, as the first rounds of the bank's `rows` say.

        To row r of round k comes, behind the bias and round after round, scale * (b @ (a @ x)): scale is that of the
        factors times that of the row, sums are f32, x is not rounded to int8. Rows without an adapter keep every bit.
        """
        assert self.lora is None, "adapters do not nest"
        self.lora = bank
        bank.n_rounds = n_rounds
        try:
            yield
        finally:
            self.lora = None

    def add_adapters(self, x: Tensor, y: Tensor, linear: Linear) -> Tensor:
        """The rows y of a linear of x, with what adapters add to them if the bank is that of the default body.

        A backend without a bank of its own gives every result of `linear`, and of what it overrides that is made of
        linears, through this.
        """
        if not isinstance(self.lora, HostLoraBank) or linear.name not in self.lora.targets:
            return y
        for added in self.lora.additions(self.read(x), linear.name, self.lora.rows_of(x.rows)):
            y = self.add(y, self.rows_like(y, added))
        return y
