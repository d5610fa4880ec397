"""Scheduling policies: one function each, from a sequence to a number; the lowest number is admitted first."""

from collections.abc import Callable

from tahr.engine.sequences.sequence import Sequence

Policy = Callable[[Sequence], int]


def first_come(seq: Sequence) -> int:
    return 0  # the order of arrival breaks ties


def highest_priority(seq: Sequence) -> int:
    return -seq.params.priority


def shortest_prompt(seq: Sequence) -> int:
    return seq.n_prompt


POLICIES: dict[str, Policy] = {
    "fcfs": first_come,
    "priority": highest_priority,
    "shortest_job_first": shortest_prompt,
    "sjf": shortest_prompt,
}
