"""Where Tahr with a Python of its own begins: the command, or one of the modules that its child processes are."""

import sys
from runpy import run_module

AS_PYTHON = ["-P", "-m"]  # how a child process is asked for; there is no other Python to ask


def main() -> None:
    module = sys.argv[3] if sys.argv[1:3] == AS_PYTHON and len(sys.argv) > 3 else ""
    if module == "pip" or module.startswith("tahr."):
        sys.argv = [module, *sys.argv[4:]]
        run_module(module, run_name="__main__", alter_sys=True)
        return
    from tahr.cli.entry import main as command

    command()


if __name__ == "__main__":
    main()
