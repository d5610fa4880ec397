"""What the scripted model does for each agent: it reads a file, edits it, runs it, and says what it did.

A play is a function of the messages so far and of the tools' names; it gives the next reply. A new agent needs a play
here and a row in `check_agent.py`.
"""

from collections.abc import Callable
from pathlib import Path

from scripted_model import Message, call, text_of

TASK = "greeting.py says the wrong thing"  # is in every prompt of a task
FILE, OLD, NEW = "greeting.py", 'print("Hello, wrold")', 'print("Hello, world")'
DONE = "The spelling is right now: greeting.py says Hello, world."
LOOK = "<think>\nThe file first.\n</think>\n\nI look at the file."
TITLE = "Spelling of the greeting"  # for requests beside the task: titles, summaries, commit messages

Play = Callable[[list[Message], set[str]], str]


def n_results(messages: list[Message]) -> int:
    return sum(message["role"] == "tool" for message in messages)


def step(steps: list[str], messages: list[Message]) -> str:
    """The step after as many results of tools as there are."""
    at = n_results(messages)
    return steps[at] if at < len(steps) else DONE


def read_edit_run(names: tuple[str, str, str], fields: tuple[str, str, str]) -> Play:
    """The play of an agent with a tool for each step; the fields hold the path, the old text and the new."""
    read, edit, run = names
    path, old, new = fields

    def play(messages: list[Message], tools: set[str]) -> str:
        if not set(names) <= tools:
            return TITLE
        where = {path: str(Path.cwd() / FILE)}
        steps = [
            LOOK + call(read, **where),
            call(edit, **where, **{old: OLD, new: NEW}),
            call(run, command=f"python3 {FILE}", description="Run the program"),
        ]
        return step(steps, messages)

    return play


opencode = read_edit_run(("read", "edit", "bash"), ("filePath", "oldString", "newString"))
claude = read_edit_run(("Read", "Edit", "Bash"), ("file_path", "old_string", "new_string"))


def codex(messages: list[Message], tools: set[str]) -> str:
    """Codex has one tool for everything; a patch is a command that it knows itself."""
    if "exec_command" not in tools:
        return TITLE
    patch = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{OLD}\n+{NEW}\n*** End Patch"
    steps = [
        LOOK + call("exec_command", cmd=f"cat {FILE}"),
        call("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}\nEOF"),
        call("exec_command", cmd=f"python3 {FILE}"),
    ]
    return step(steps, messages)


def aider(messages: list[Message], tools: set[str]) -> str:
    """Aider shows the file and takes edits as text. The first edit is wrong: its test fails, and it asks again."""
    if "commit message" in text_of(messages[0]):
        return TITLE
    almost = OLD.replace("wrold", "word")
    failed = "AssertionError" in text_of(messages[-1])
    return f"I correct it.\n\n{edit_block(almost, NEW) if failed else edit_block(OLD, almost)}"


def edit_block(old: str, new: str) -> str:
    return f"{FILE}\n```python\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n"


PLAYS: dict[str, Play] = {"opencode": opencode, "aider": aider, "claude": claude, "codex": codex}
