"""Triton kernels of the cuda backend, each beside the function that launches it.

Every kernel loads any float type, computes in f32 unless it says otherwise, and stores in the type of its output.
Counts that change from step to step are read on the device, so that a captured graph follows them.
"""
