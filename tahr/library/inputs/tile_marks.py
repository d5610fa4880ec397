"""The tiles of an image that was split, and what stands between them in a prompt of SmolVLM and Idefics3."""

from collections.abc import Iterator

from tahr.images.processors import Patches

AROUND = "<fake_token_around_image>"
WHOLE = "<global-img>"


def marks_of(n_high: int, n_wide: int) -> list[str]:
    """The text before each tile and behind the last one, which is the whole image."""
    if n_high * n_wide == 1:
        return [f"{AROUND}{WHOLE}", AROUND]
    made: list[str] = []
    for line in range(n_high):
        for column in range(n_wide):
            ends_line = line > 0 and column == 0
            made.append("\n" * ends_line + f"{AROUND}<row_{line + 1}_col_{column + 1}>")
    return [*made, f"\n\n{AROUND}{WHOLE}", AROUND]


def tiles_of(patches: Patches) -> Iterator[Patches]:
    """Each tile of an image, and the whole one."""
    n = patches.n_wide**2
    for begin in range(0, len(patches.values), n):
        yield Patches(patches.values[begin : begin + n], patches.n_wide, patches.n_wide)
