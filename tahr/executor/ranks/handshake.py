"""The handshake of driver and ranks before anything is loaded: all must mean the same files and the same parts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tahr.errors import LoadError
from tahr.models.loader.load import OpenedModel, open_model
from tahr.models.sharding.plan import ShardingPlan

Hello = dict[str, Any]
# Facts that must be alike, and what to do where they are not.
ALIKE = {
    "version": "runs another version of Tahr: install one for all",
    "files": "reads other files: they were changed while the model was loaded, so load it again",
    "plan": "has another sharding plan: please report this",
}


def hello_of(source: OpenedModel, plan: ShardingPlan) -> Hello:
    """The facts that are the same in all processes if nothing is amiss."""
    files = {id(tensor.source.file): tensor.source.file for tensor in source.tensors.values() if tensor.source}
    stamps = sorted(file.first_stamp for file in files.values() if file)
    digest = blake2b(json.dumps(stamps).encode(), digest_size=16).hexdigest()
    return {"version": version("tahr"), "files": digest, "plan": plan.digest}


def check_hello(rank: int, found: Hello, wanted: Hello) -> None:
    """Refuse a rank that is not like the driver."""
    for name, sentence in ALIKE.items():
        if found.get(name) != wanted[name]:
            raise LoadError(f"Rank {rank} {sentence}.")


def origin(source: OpenedModel) -> Hello:
    """How a model is opened again, as `reopened` reads it."""
    if not source.files:
        raise LoadError("Ranks open the model's files themselves, and this one is in memory: give its path.")
    directory = str(source.directory.absolute()) if source.directory else None
    files = [str(path.absolute()) for path in source.files]
    return {"files": files, "directory": directory, "n_context": source.n_context, "name": source.name}


def reopened(given: Mapping[str, Any]) -> OpenedModel:
    """The model of the driver."""
    directory = Path(given["directory"]) if given["directory"] else None
    source = open_model([Path(file) for file in given["files"]], directory)
    return replace(source, n_context=given["n_context"], name=given["name"])
