"""Which Vulkan devices this machine has, and which of them is meant."""

import os
from functools import cache

from tahr import _vulkan as native
from tahr.errors import ConfigError

TIMEOUT_S = 20  # time a driver has to say what there is
DISCRETE = 2  # VkPhysicalDeviceType of a card of its own
SOFTWARE = 4  # type of a device that is the processor
# The best first, by VkPhysicalDeviceType.
KINDS = {DISCRETE: "discrete", 1: "integrated", 3: "virtual", 0: "other", SOFTWARE: "software"}
CHOICE = "TAHR_VULKAN_DEVICE"  # a device for whom none is named


@cache
def probed() -> tuple[list[native.DeviceFacts], str]:
    """The devices, or why there are none."""
    try:
        return native.probe(TIMEOUT_S), ""
    except native.DeviceError as error:
        return [], str(error)


def choose(named: str) -> int:
    """The number of the device that `named` names by number or by a part of its name; empty: the best there is.

    A device that is the processor in disguise is never the best.
    """
    devices, problem = probed()
    if problem:
        raise ConfigError(f"The vulkan backend cannot run here: {problem}.")
    wanted = named or os.environ.get(CHOICE, "")
    found = [i for i, facts in enumerate(devices) if matches(i, facts, wanted)]
    found.sort(key=lambda i: list(KINDS).index(devices[i].type))
    if not found:
        raise ConfigError(absent(devices, wanted))
    usable = [i for i in found if not devices[i].missing]
    if not usable:
        facts = devices[found[0]]
        raise ConfigError(f"The vulkan backend cannot use {facts.name}: it lacks {facts.missing}.")
    return usable[0]


def own_bytes(named: str) -> int:
    """The memory of a card that has its own; 0 for every other device, and where there is none."""
    try:
        facts = probed()[0][choose(named)]
    except ConfigError:
        return 0
    return int(facts.memory_bytes) if facts.type == DISCRETE else 0


def matches(number: int, facts: native.DeviceFacts, wanted: str) -> bool:
    if not wanted:
        return facts.type != SOFTWARE
    return wanted == str(number) if wanted.isdigit() else wanted.lower() in facts.name.lower()


def absent(devices: list[native.DeviceFacts], wanted: str) -> str:
    listed = ", ".join(f"{i}: {facts.name}" for i, facts in enumerate(devices))
    if wanted:
        return f"There is no Vulkan device {wanted!r} here. There are: {listed}."
    return f"There is no graphics card that speaks Vulkan here, but {listed}; `vulkan:0` asks for it by its number."


def version(packed: int) -> str:
    return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


def describe() -> dict[str, str]:
    """The lines of `tahr devices`, one for each device."""
    devices, problem = probed()
    if problem:
        return {"problem": problem}
    return {f"vulkan:{i}": describe_one(facts) for i, facts in enumerate(devices)}


def describe_one(facts: native.DeviceFacts) -> str:
    kind = KINDS.get(facts.type, "other")
    words = [facts.name, kind, f"Vulkan {version(facts.api_version)}", facts.driver.strip()]
    words += [f"{facts.memory_bytes / 1e9:.1f} GB", f"subgroups of {facts.subgroup_size}"]
    words += ["matrices of " + "x".join(map(str, facts.matrix))] if facts.matrix[0] else []
    words += [f"cannot be used: it lacks {facts.missing}"] if facts.missing else []
    return ", ".join(words)
