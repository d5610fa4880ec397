"""Ranks in processes of their own: a driver that sends all of them the same steps, and the program that each runs."""
