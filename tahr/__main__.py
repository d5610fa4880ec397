"""`python -m tahr` is the command `tahr`."""

from tahr.cli.entry import main

if __name__ == "__main__":
    main()
