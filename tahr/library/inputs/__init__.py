"""Arguments of the library, as the engine wants them."""
