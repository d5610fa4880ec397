"""The memory of images in requests that wait or run."""

from threading import RLock
from weakref import finalize

from tahr.engine.sequences.prompt_rows import RowSource
from tahr.errors import ImagesBusy


class KeptImages:
    """A count of the memory that images take until their requests end. Any thread may use it."""

    def __init__(self, limit: int):
        self.limit = limit
        self.n_used = 0
        self._lock = RLock()  # the collector of garbage may let an image go inside

    def keep(self, source: RowSource, n_own: int) -> int:
        """Count an image for as long as it is there, and give its bytes.

        A request that has so many bytes of images already is refused where all would exceed the limit, unless no other
        request has any.
        """
        n_bytes = source.values.nbytes
        with self._lock:
            n_others = self.n_used - n_own
            if n_others > 0 and self.n_used + n_bytes > self.limit:
                raise ImagesBusy(
                    "The images of other requests take all the memory that there is for them: try again in a moment."
                )
            self.n_used += n_bytes
        finalize(source, self._gone, n_bytes).atexit = False
        return n_bytes

    def _gone(self, n_bytes: int) -> None:
        with self._lock:
            self.n_used -= n_bytes
