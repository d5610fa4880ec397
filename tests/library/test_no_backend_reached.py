"""From an engine, and from what a library keeps around it, only an executor leads to a backend or its memory."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from tahr import LLM, InferenceConfig, InferenceEngine, SamplingParams, SpeculativeEngine
from tahr.models.decoder import Decoder

# Arrays, and the records of them that stand in steps and samples.
PLAIN = ("api.step.StepInputs", "api.step.StepLimits", "api.lora.LoraRows", "sampling.sample_rows.")


def parts_of(thing: object) -> Iterator[object]:
    """What an object holds: items, attributes, and what a function has bound."""
    match thing:
        case dict():
            yield from (*thing.keys(), *thing.values())
        case list() | tuple() | set() | frozenset():
            yield from thing
        case MethodType():
            yield thing.__self__
        case partial():
            yield from (thing.func, *thing.args, *thing.keywords.values())
        case FunctionType():
            yield from (cell.cell_contents for cell in thing.__closure__ or () if cell_filled(cell))
    if not isinstance(thing, type):
        yield from getattr(thing, "__dict__", {}).values()
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from (getattr(thing, name) for name in slots if not name.startswith("__") and hasattr(thing, name))


def cell_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def reached(root: object) -> set[str]:
    """The kinds of all objects that can be reached; executors are as far as it goes."""
    found: set[str] = set()
    seen: set[int] = set()
    ahead = [root]
    kept = []  # alive, so that ids stay those of different objects
    while ahead:
        thing = ahead.pop()
        kind = type(thing)
        if id(thing) in seen or (kind.__module__ == "builtins" and isinstance(thing, str | bytes | int | float)):
            continue
        seen.add(id(thing))
        kept.append(thing)
        found.add(f"{kind.__module__}.{kind.__qualname__}")
        if not kind.__module__.startswith(("tahr.executor", "numpy")):
            ahead += parts_of(thing)
    return found


def device_kinds(root: object) -> set[str]:
    decoder = f"{Decoder.__module__}.{Decoder.__qualname__}"
    kinds = reached(root)
    plain = tuple(f"tahr.backends.{name}" for name in PLAIN)
    assert "tahr.executor.local.LocalExecutor" in kinds and len(kinds) > 50
    return {
        each for each in kinds if each == decoder or (each.startswith("tahr.backends.") and not each.startswith(plain))
    }


def test_an_llm_reaches_no_backend(stories: Path) -> None:
    with LLM(str(stories), context_size=64, spec_ngram=True) as llm:
        llm.generate("Once", SamplingParams(max_tokens=8, temperature=0.8))
        assert device_kinds(llm) == set()


def test_an_inference_engine_reaches_no_backend(stories: Path) -> None:
    eng = InferenceEngine(InferenceConfig(str(stories), context_size=64, num_threads=1))
    eng.load_model()
    eng.generate("Once", 4)
    assert device_kinds([eng, eng.kv_snapshot()]) == set()


def test_a_speculative_engine_reaches_no_backend(stories: Path) -> None:
    eng = SpeculativeEngine(InferenceConfig(str(stories), context_size=64, num_threads=1), str(stories), 2)
    eng.generate("Once", 4)
    assert device_kinds(eng) == set()


def test_the_walk_finds_what_is_hidden(stories: Path) -> None:
    eng = InferenceEngine(InferenceConfig(str(stories), context_size=64, num_threads=1))
    eng.load_model()
    backend = eng._model.engine.executor.backend  # type: ignore[attr-defined]
    hidden = [lambda: backend, partial(print, backend), {"x": (backend,)}, backend.flush]
    assert all(any(kind.endswith(".CpuBackend") for kind in reached(each)) for each in hidden)
