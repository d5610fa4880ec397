"""The parts that decoders are made of."""
