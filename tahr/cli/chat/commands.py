"""Commands after a slash, as a table."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tahr.cli.chat import chat_files
from tahr.cli.chat.chat_images import image_part
from tahr.cli.chat.conversation import Conversation
from tahr.cli.settings.options import SAMPLING, said
from tahr.cli.terminal.console import counted, note, values_line
from tahr.config import SamplingParams
from tahr.errors import ConfigError, TahrError
from tahr.hub.progress import human_bytes
from tahr.hub.refs import expanded

KV = "--kv"


class Leave(Exception):
    """The user wants to go."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its action, its argument, and one line about it."""

    run: Callable[[Conversation, str], None]
    takes: str
    help: str
    also: tuple[str, ...] = ()


def obey(conversation: Conversation, line: str) -> None:
    """Run the command that `line`, which starts with a slash, names."""
    name, _, argument = line[1:].partition(" ")
    command = NAMES.get(name)
    if command is None:
        near = get_close_matches(name, NAMES, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands."
        raise ConfigError(f"There is no command /{name}: {hint}")
    argument = argument.strip()
    if argument and not command.takes:
        raise ConfigError(f"/{name} takes nothing after it.")
    command.run(conversation, argument)


def show_help(conversation: Conversation, argument: str) -> None:
    for name, command in COMMANDS.items():
        others = f" (also {', '.join('/' + other for other in command.also)})" if command.also else ""
        note(f"  {f'/{name} {command.takes}':<22} {command.help}{others}")
    note('  """                    starts and ends a message of several lines')
    note("  \\                      at the end of a line: the message goes on in the next")
    note("                         lines pasted together are one message")
    note("  Ctrl-C                 stops the reply; Ctrl-D leaves")


def clear(conversation: Conversation, argument: str) -> None:
    conversation.clear()
    conversation.output.cleared()


def system(conversation: Conversation, argument: str) -> None:
    if argument:
        conversation.system = argument
    note(f"system: {conversation.system}" if conversation.system else "There is no system prompt.")


def set_value(conversation: Conversation, argument: str) -> None:
    """Alone, shows the values in force; NAME VALUE changes one; NAME default gives it back to the model."""
    if argument:
        conversation.requested = changed(conversation.requested, argument)
    note(values_line(said(conversation.sampling)) or "The server's own values are in force.")


def changed(params: SamplingParams, assignment: str) -> SamplingParams:
    """`params` with one `NAME VALUE` laid over it, checked."""
    name, _, text = assignment.partition(" ")
    option = SETTINGS.get(name.lstrip("-").replace("-", "_"))
    if option is None:
        near = get_close_matches(name, SETTINGS, 1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(o.field for o in SAMPLING)}."
        raise ConfigError(f"There is no setting `{name}`: {hint}")
    text = text.strip()
    if not text:
        raise ConfigError(f"Give a value, as in `/set {name} VALUE`, or `default` for the model's own.")
    if text == "default":
        unset = SamplingParams()
        return replace(params, **{option.field: getattr(unset, option.field)})
    return replace(params, **{option.field: parsed(option.type, name, text)})


def parsed(kind: Callable[[str], Any], name: str, text: str) -> Any:
    try:
        return kind(text)
    except (ValueError, ArgumentTypeError):
        what = "a number" if kind is float else "a whole number"
        raise ConfigError(f"{name} is `{text}`, but it must be {what}.") from None


def save(conversation: Conversation, argument: str) -> None:
    name, keeps_kv = without_kv_option(argument)
    path = file_named(name, "/save")
    if keeps_kv:
        path = chat_files.beside_kv(path)
    kv = kv_of(conversation) if keeps_kv else None
    chat_files.write(
        path, chat_files.SavedChat(conversation.llm.name, conversation.messages, conversation.requested), kv
    )
    beside = f", its keys and values to {chat_files.kv_file(path)} ({human_bytes(len(kv))})" if kv else ""
    note(f"Saved {counted(len(conversation.messages), 'message')} to {path}{beside}.")


def without_kv_option(argument: str) -> tuple[str, bool]:
    """A file's name, and whether the option stands before or after it."""
    if argument == KV or argument.startswith(f"{KV} "):
        return argument.removeprefix(KV).strip(), True
    if argument.endswith(f" {KV}"):
        return argument.removesuffix(KV).strip(), True
    return argument, False


def kv_of(conversation: Conversation) -> bytes:
    if any(not isinstance(message["content"], str) for message in conversation.messages):
        raise ConfigError(f"{KV} keeps texts alone, and this conversation has images: save without it.")
    if conversation.prefix_files is None or conversation.raw:
        raise ConfigError(f"{KV} needs a conversation with a model in this process: save without it.")
    return conversation.prefix_files.copy(conversation.llm.encode_chat(conversation.messages, **conversation.variables))


def image(conversation: Conversation, argument: str) -> None:
    conversation.images.append(image_part(file_named(argument, "/image")))
    note(f"The next message has {counted(len(conversation.images), 'image')}.")


def load(conversation: Conversation, argument: str) -> None:
    path = chat_files.conversation_at(file_named(argument, "/load"))
    found = chat_files.read(path)
    if conversation.raw:
        raise ConfigError("With --raw there is no conversation to go on with: start again without it.")
    n_tokens = restore_kv(conversation, path, found.kv_sha256) if found.kv_sha256 else 0
    conversation.messages = list(found.messages)
    conversation.requested = found.sampling
    if found.model != conversation.llm.name:
        note(f"warning: This conversation was held with {found.model}; {conversation.llm.name} will go on with it.")
    restored = f", with keys and values of {counted(n_tokens, 'token')}" if n_tokens else ""
    note(f"Loaded {counted(len(found.messages), 'message')}{restored}.")


def restore_kv(conversation: Conversation, path: Path, digest: str) -> int:
    """How many tokens need no prefill. A changed file is an error; one of another model only costs the prefill."""
    files = conversation.prefix_files
    if files is None or not chat_files.kv_file(path).exists():
        note("note: The keys and values of this conversation are not used here: its text is computed again.")
        return 0
    data = chat_files.read_kv(path, digest, files.max_bytes)
    try:
        return files.restore(data)
    except TahrError as error:
        note(f"note: {error} The text is computed again.")
        return 0


def file_named(text: str, command: str) -> Path:
    if not text:
        example = "photo.png" if command == "/image" else "talk.json"
        raise ConfigError(f"Say which file, as in `{command} {example}`.")
    return expanded(text)


def leave(conversation: Conversation, argument: str) -> None:
    raise Leave


SETTINGS = {flag.lstrip("-").replace("-", "_"): option for option in SAMPLING for flag in (*option.flags, option.field)}

COMMANDS = {
    "help": Command(show_help, "", "this list", also=("?",)),
    "clear": Command(clear, "", "forget the conversation, keep the system prompt", also=("reset",)),
    "system": Command(system, "TEXT", "show or change the system prompt"),
    "set": Command(set_value, "NAME VALUE", "show or change sampling; the value `default` is the model's own"),
    "image": Command(image, "FILE", "put an image before the next message"),
    "save": Command(save, "[--kv] FILE", "write the conversation to a file; --kv: what was computed of it, too"),
    "load": Command(load, "FILE", "go on with a saved conversation"),
    "bye": Command(leave, "", "leave", also=("quit", "exit")),
}
NAMES = {name: command for first, command in COMMANDS.items() for name in (first, *command.also)}
