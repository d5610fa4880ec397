"""`python -m tahr` is the command `tahr`."""

import sys

from tahr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
