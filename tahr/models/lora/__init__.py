"""Low-rank adapters: read from files, checked against the model they change, merged into it."""

from tahr.models.lora.adapter import Adapter, AdapterTarget
from tahr.models.lora.reader import open_adapter

__all__ = ["Adapter", "AdapterTarget", "open_adapter"]
