"""Sleep: an engine without work gives its memory back, and takes it again when there is some."""

from tahr.engine.engine import Engine
from tahr.errors import ConfigError, GenerateError

UNLOAD = "unload the model in place of letting it sleep."


def sleep(engine: Engine) -> int:
    """Give back keys, values and states, and the device's copy of the weights; the bytes that it was.

    Texts that were cached are computed again afterwards.
    """
    check_may_sleep(engine)
    if engine.scheduler.prefix:
        engine.scheduler.prefix.clear()
    engine.steps.sizes.forget()
    return engine.executor.sleep()


def wake(engine: Engine) -> None:
    """Take the memory again; an error leaves the engine asleep."""
    engine.executor.wake()


def check_may_sleep(engine: Engine) -> None:
    """Refuse an engine that works, or keeps what would be lost."""
    if engine.busy or any(pool.n_used for pool in engine.scheduler.pools):
        raise GenerateError("The model still works, or sessions hold its pages: let it sleep when it is idle.")
    if engine.tower_facts:
        raise ConfigError(f"Models that read images or recordings keep rows of them, and do not sleep: {UNLOAD}")
    if engine.scheduler.tiers:
        raise ConfigError(f"Models with pages in host memory or on a disk do not sleep: {UNLOAD}")
    if engine.executor.facts.has_own_memory and engine.adapters.n_used:
        raise ConfigError(f"Models with adapters on a GPU do not sleep: {UNLOAD}")
