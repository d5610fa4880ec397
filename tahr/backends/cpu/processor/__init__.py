"""The processor of this machine: what it is, its kernels, and the threads that suit it."""
