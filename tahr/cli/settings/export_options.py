"""Options that `tahr quantize`, `tahr convert` and `tahr merge` share."""

import sys
from pathlib import Path

from tahr.cli.settings.model_files import find
from tahr.cli.settings.options import exact
from tahr.cli.terminal.console import note


def export(
    model: str, out: Path, mix: str | None, *, requantize: bool = False, lora: tuple[Path, float] | None = None
) -> int:
    """Write the model, progress on stderr, and say what came of it."""
    from tahr.hub.progress import Progress, human_bytes
    from tahr.tools.gguf_export import export as write

    done = write(find(exact(model, True)), out, mix, requantize=requantize, progress=Progress(sys.stderr), lora=lora)
    for line in done.notes:
        note(line)
    formats = ", ".join(f"{n} {name}" for name, n in sorted(done.formats.items()))
    sizes = f"{human_bytes(done.n_bytes_before)} of weights before, {human_bytes(done.n_bytes)} now"
    print(f"{done.path}: {done.mix}, {sizes} ({formats})")
    return 0
