"""A backend: a device with its memory, its steps, its sampling, its adapters and its ops."""

from tahr.backends.api.adapting import Adapting
from tahr.backends.api.device_memory import Memory
from tahr.backends.api.ops import Ops
from tahr.backends.api.recording import Recording
from tahr.backends.api.sampling import Sampling


class Backend(Memory, Sampling, Adapting, Ops, Recording):
    """A device and its ops. Abstract methods are what a new backend must have; every other one has a default body."""
