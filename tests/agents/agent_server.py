"""A server whose model plays a programmer. Arguments: the agent's name, a file that gets a line of JSON per request."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from plays import PLAYS, TASK, TITLE
from scripted_model import Message, ScriptedModel, serve_until_signal, text_of


def main(agent: str, log: Path) -> None:
    def play(messages: list[Message], tools: list[dict[str, Any]]) -> str:
        names = {tool["function"]["name"] for tool in tools}
        is_task = any(TASK in text_of(message) for message in messages)
        reply = PLAYS[agent.partition("-")[0]](messages, names) if is_task else TITLE
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"messages": messages, "tools": sorted(names), "reply": reply}) + "\n")
        return reply

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve_until_signal(ScriptedModel(play), ready=lambda address: print(f"Ready on {address} ", flush=True))


main(sys.argv[1], Path(sys.argv[2]))
