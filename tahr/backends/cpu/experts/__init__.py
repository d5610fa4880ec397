"""Experts on the CPU: ops of steps, and tapes that the steps of a GPU call."""
