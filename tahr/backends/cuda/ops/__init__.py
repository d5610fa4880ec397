"""The ops of a CUDA device by what they do, and what they share: rows, the inputs of a step, products, adapters."""
