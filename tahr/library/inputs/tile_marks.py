"""The tiles of an image that was split, in the order of a prompt: those of SmolVLM and Idefics3 between marks, those of
LLaVA 1.6 line by line."""

from collections.abc import Callable, Iterator, Sequence

from tahr.generation.pictures import ImageRun, Picture, PromptImage
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


def marked(tiles: Sequence[PromptImage], n_high: int, n_wide: int, encode: Callable[[str], list[int]]) -> Picture:
    """Each behind the tokens that say where it is."""
    *before, behind = marks_of(n_high, n_wide)
    made: list[PromptImage | list[int]] = []
    for tile, marks in zip(tiles, before, strict=True):
        made += [encode(marks), tile]
    return [*made, encode(behind)]


def line_by_line(tiles: Sequence[PromptImage], patches: Patches, line_end: PromptImage) -> Picture:
    """All of the image; then the lines of the others from left to right without what is beside it, a row behind
    each."""
    whole, *rest = tiles
    if not rest or patches.grid is None or patches.kept is None:
        return [whole, line_end]
    n_wide = patches.grid[1]
    side = patches.n_wide
    lines, columns = patches.kept
    made: list[PromptImage | ImageRun | list[int]] = [whole]
    for line in lines:
        row_of_tiles = rest[line // side * n_wide :][:n_wide]
        for i, tile in enumerate(row_of_tiles):
            first = max(columns.start - i * side, 0)
            behind = min(columns.stop - i * side, side)
            if first < behind:
                made.append(ImageRun(tile, line % side * side + first, behind - first))
        made.append(line_end)
    return made
