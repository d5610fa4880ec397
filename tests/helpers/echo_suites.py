"""The tests of another file once more, with every executor behind the echo."""

from collections.abc import Collection, Iterator
from types import FunctionType, ModuleType

import pytest

from echo_executor import EchoExecutor
from tahr.loading import builder


def again(module: ModuleType, kept: Collection[str] = ()) -> dict[str, object]:
    """Tests and fixtures of a file, for the namespace of another; outside the full tier only those `kept` run."""
    found = {name: thing for name, thing in vars(module).items() if not name.startswith("__")}
    for name, thing in found.items():
        if name.startswith("test_") and isinstance(thing, FunctionType) and name not in kept:
            found[name] = pytest.mark.full(copy_of(thing))
    missing = [name for name in kept if name not in found]
    assert not missing, f"{module.__name__} has no {missing}"
    return found


def copy_of(test: FunctionType) -> FunctionType:
    """The same test, which can be marked apart from it."""
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    copy.__dict__.update(test.__dict__)
    copy.__kwdefaults__ = test.__kwdefaults__
    copy.__annotations__ = test.__annotations__
    copy.__dict__["pytestmark"] = list(getattr(test, "pytestmark", []))
    return copy


@pytest.fixture(scope="module", autouse=True)
def through_bytes() -> Iterator[None]:
    """Engines that are built in a file have executors that are given bytes."""
    before = EchoExecutor.n_launched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "LocalExecutor", EchoExecutor)
        yield
    assert EchoExecutor.n_launched > before, "nothing went through bytes"
