"""A writer of text for benchmarks that only count tokens."""


class Silent:
    """A writer for requests whose text nobody reads."""

    stopped = False
    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0
    matched_stop: str | None = None

    def push(self, token: int) -> tuple[()]:
        return ()

    def flush(self) -> tuple[()]:
        return ()
