"""The places behind an engine's pools: what was asked for, checked, and made."""

import logging
import stat
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from tahr.backends.host.memory import host_free_bytes, host_total_bytes
from tahr.config import EngineConfig
from tahr.config.sizes import parse_size
from tahr.engine.engine import Engine
from tahr.engine.tiers.places import Host, Places, TierStats
from tahr.engine.tiers.tiers import PageTiers
from tahr.errors import ConfigError
from tahr.hub.refs import expanded
from tahr.kv.prefix import PrefixCache
from tahr.kv.store import BoundedStore
from tahr.kv.tiers.disk import LEAST_FILES, MIN_FILE_BYTES, DiskTier
from tahr.kv.tiers.page_files import VERSION
from tahr.kv.tiers.seal import Seal, parse_key
from tahr.loading.fingerprint import fingerprint_of_files
from tahr.models.config.record import ModelConfig
from tahr.regular_file import read_bytes

log = logging.getLogger("tahr.kv")
DIGEST_BYTES = 16
MOST_TOKENS = 256  # tokens in a file, however small the pages are
MAX_KEY_FILE = 1 << 10
DEFAULT_SIZE = "20g"
LEAST_PAGES = 8  # pages that memory of the host must hold to be of use
ON_THEIR_WAY = 256 << 20  # most memory for copies that have not ended


def add_tiers(
    engine: Engine, config: EngineConfig, kernels: str, weights: Sequence[Path], model_config: ModelConfig
) -> str:
    """Put places behind the pools of an engine, as far as they were asked for; a line for the load log, or nothing."""
    if config.kv_host_size is None and config.kv_disk is None:
        return ""
    prefix = prefix_of(engine, config)
    page_bytes = sum(pool.page_bytes for pool in prefix.pools)
    n_run = run_pages(page_bytes, prefix.page_size)
    layout = layout_digest(engine, config, kernels, weights, model_config)
    disk = open_disk(config, layout, n_run * page_bytes) if config.kv_disk else None
    n_host_bytes = host_bytes(config, page_bytes) if config.kv_host_size else 0
    if n_host_bytes:
        engine.executor.pages.reserve(n_host_bytes)
    # Copies on their way take memory beside what is kept: without it nothing new would come into a full store.
    host: Host | None = BoundedStore(n_host_bytes - min(n_host_bytes // 8, ON_THEIR_WAY)) if n_host_bytes else None
    pace = engine.scheduler.pace
    engine.scheduler.tiers = PageTiers(Places(engine.executor.pages, prefix, pace, n_run, host, disk, TierStats()))
    lines = [f"{n_host_bytes / 1e9:.1f} GB of host memory"] if n_host_bytes else []
    lines += [f"{disk.max_bytes / 1e9:.1f} GB in {disk.path}"] if disk else []
    line = f"Pages are kept in {' and '.join(lines)}"
    log.info(line)
    return line


def prefix_of(engine: Engine, config: EngineConfig) -> PrefixCache:
    """The prefix cache, by whose hashes pages are kept elsewhere."""
    option = "kv_disk" if config.kv_disk else "kv_host_size"
    if engine.scheduler.prefix is None:
        raise ConfigError(
            f"{option} keeps pages by their hashes in the prefix cache, and there is none: leave one of the two out."
        )
    if config.spec_draft and not config.spec_off:
        raise ConfigError(
            f"{option} is set, and a draft model writes to pages after they are full: leave one of the two out."
        )
    return engine.scheduler.prefix


def run_pages(page_bytes: int, page_size: int) -> int:
    """Pages of a file: few enough that a text fills one, and enough for a disk to be quick."""
    n_most = max(1, MOST_TOKENS // page_size)
    return min(n_most, -(-MIN_FILE_BYTES // page_bytes))


def host_bytes(config: EngineConfig, page_bytes: int) -> int:
    """Bytes for pages on the host; a share is one of the machine's memory."""
    free = host_free_bytes()
    n_bytes = parse_size(config.kv_host_size or "", "kv_host_size").of(host_total_bytes())
    if not LEAST_PAGES * page_bytes <= n_bytes <= free:
        raise ConfigError(
            f"kv_host_size is {config.kv_host_size}, but it must be between {LEAST_PAGES * page_bytes} bytes, "
            f"{LEAST_PAGES} pages, and {free >> 20}m, which is free here: choose another size."
        )
    return n_bytes


def open_disk(config: EngineConfig, layout: bytes, run_bytes: int) -> DiskTier:
    """The directory for files of one layout."""
    path = expanded(config.kv_disk or "").absolute()
    text = config.kv_disk_size or DEFAULT_SIZE
    size = parse_size(text, "kv_disk_size")
    if size.share is not None or size.n_bytes < LEAST_FILES * run_bytes:
        raise ConfigError(
            f"kv_disk_size is {text}, but it must be a number of bytes, at least {-(-LEAST_FILES * run_bytes >> 20)}m: "
            f"{LEAST_FILES} files of this model."
        )
    seal = None
    if config.kv_disk_key:
        seal = Seal(read_key(expanded(config.kv_disk_key)))
        layout = blake2b(layout + seal.id, digest_size=DIGEST_BYTES).digest()
    return DiskTier(path, layout, size.n_bytes, seal)


def read_key(path: Path) -> bytes:
    """The key of a file that nobody else can read."""
    try:
        found = path.stat()
        content = read_bytes(path, MAX_KEY_FILE)
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from error
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"The key {path} can be read by others than its owner: chmod 600 it.")
    return parse_key(content if len(content) == 32 else content.strip(), str(path))


def layout_digest(
    engine: Engine, config: EngineConfig, kernels: str, weights: Sequence[Path], model_config: ModelConfig
) -> bytes:
    """Equal only where pages have the same bytes: the same weights, computed alike, lying alike.

    Adapters and salts are in the block hashes. Other kernels round differently, so they count too.
    """
    layout = engine.executor.facts.memory.layout
    files = fingerprint_of_files(weights)
    options = (config.deterministic, config.quantize, config.cpu_experts)
    facts = (version("tahr"), VERSION, layout.digest.hex(), files, kernels, options, replace(model_config, guess=""))
    return blake2b(repr(facts).encode(), digest_size=DIGEST_BYTES).digest()
