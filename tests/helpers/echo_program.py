"""The process behind an `EchoExecutor`. Modules that a machine adds to every Python are there before it."""

import sys

OF_MACHINE = frozenset(sys.modules)

if __name__ == "__main__":
    import echo_codec

    echo_codec.serve(OF_MACHINE)
