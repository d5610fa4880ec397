"""Models larger than the memory they run in: where each tensor lives, what that costs, and how it gets to the kernels.

The parts, from the outside in:

- `policy`: what was asked for (`OffloadPolicy`, and the budgets of `EngineConfig`).
- `homes`: plain data. A tensor that is not at its backend's usual place has a `Home`.
- `loading.sizing` gives every tensor a home before a matrix is read; `models.loader.load` takes the homes that are not
  the usual one (`Placement.elsewhere`) and hands those tensors to `Backend.weight_elsewhere` instead of `weight`.
- A backend says in `Backend.homes` which homes it has a mechanism for. What needs another one is refused by name, at
  load, by `refuse_homes`.

A mechanism is added by putting its home's name into `homes` of a backend, overriding `weight_elsewhere`, and choosing
that home where tensors are placed.
"""
