"""Steps on a backend: their arrays, samples, and kernels that are made ahead."""
