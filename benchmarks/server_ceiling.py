"""How much the server carries when the engine costs nothing: the real server, one core, a script instead of a model.

Everything but the model is real: HTTP, checks, template, tokenizer, the engine's thread and the way back. The script
gives every request a token per step and sleeps between steps as long as a fast device would compute. The server has
one core to itself and the client the other; the client's own load says that it is not the limit.

usage: benchmarks/server_ceiling.py [MODEL] [--seconds S] [--step-ms MS] [--stream-interval S]
       (MODEL: whose tokenizer and template)
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from lean_client import connect, ended_well, events_of, request
from server_process import cpu_s
from tahr import LLM, AsyncLLM
from tahr.engine.engine import Event
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence as EngineSequence
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.tools.environment import Neighbours

SERVER_CORE, CLIENT_CORE = 0, 1
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
SHORT = request("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4})
N_STREAMED = 256  # tokens
STREAMED = request("/v1/chat/completions", {"messages": QUESTION, "max_tokens": N_STREAMED, "stream": True})
# What is asked, by how many connections at once.
CASES = {"short requests": (SHORT, 64, 4), "streams": (STREAMED, 256, N_STREAMED)}


class Script:
    """In the place of `Engine`: writes the same words over and over, to everybody who asked."""

    def __init__(self, words: Sequence[int], step_s: float):
        self.words, self.step_s = words, step_s
        self.live: dict[int, EngineSequence] = {}
        self.steps = 0

    def submit(self, request: ResolvedRequest, grammar: Any = None) -> EngineSequence:
        tokens, params = list(request.tokens), request.params
        seq = EngineSequence(tokens, params, ReplyState(len(tokens) + (params.max_tokens or 1), request.new_writer()))
        self.live[seq.id] = seq
        return seq

    def step(self) -> list[Event]:
        time.sleep(self.step_s)
        self.steps += 1
        now = time.perf_counter()
        return [self.write(seq, now) for seq in list(self.live.values())]

    def write(self, seq: EngineSequence, now: float) -> Event:
        token = self.words[seq.n_generated % len(self.words)]
        seq.append(token, now)
        assert seq.reply.writer
        deltas = seq.reply.writer.push(token)
        if len(seq.tokens) >= seq.reply.max_length:
            self.abort(seq, "length")
        return seq, deltas, (token,)

    def abort(self, seq: EngineSequence, reason: Any = None) -> None:
        if not seq.done:
            seq.result.finish_reason = reason or "cancelled"
            del self.live[seq.id]

    @property
    def busy(self) -> bool:
        return bool(self.live)

    def snapshot(self) -> StatsSnapshot:
        return StatsSnapshot(steps=self.steps, requests_running=len(self.live))


def serve(model: str | None, step_s: float, interval_s: float) -> None:
    """In a process of its own."""
    from tahr.server.lifecycle import HttpServer
    from tahr.server.models.llm_engine import LlmEngine
    from tahr.server.models.registry import ServedModel
    from tahr.server.state.settings import Settings

    def load() -> list[ServedModel]:
        llm = LLM(model)
        words = llm.tokenizer.encode("The sky is blue because light is scattered by air. ", add_special=False)
        llm.engine = llm.driver.engine = Script(words, step_s)  # type: ignore[assignment]
        return [ServedModel(("scripted",), LlmEngine(AsyncLLM(llm=llm, stream_interval_s=settings.stream_interval_s)))]

    settings = Settings(port=0, log_interval_s=0, stream_interval_s=interval_s)
    HttpServer(settings, load, lambda address, _: print(address, flush=True)).run()


async def press(address: str, data: bytes, n_connections: int, seconds: float) -> list[bytes]:
    """All answers that came within the time."""
    answers: list[bytes] = []
    end = time.monotonic() + seconds

    async def client() -> None:
        connection = await connect(address)
        while time.monotonic() < end:
            answers.append(await connection.ask(data))
        connection.transport.close()

    await asyncio.gather(*(client() for _ in range(n_connections)))
    return answers


def measure(name: str, address: str, pid: int, seconds: float) -> None:
    data, n_connections, n_tokens = CASES[name]
    uvloop.run(press(address, data, n_connections, 1.0))  # warm
    began, ours, theirs, neighbours = time.perf_counter(), time.process_time(), cpu_s(pid), Neighbours()
    answers = uvloop.run(press(address, data, n_connections, seconds))
    took = time.perf_counter() - began
    ours, theirs = (time.process_time() - ours) / took, (cpu_s(pid) - theirs) / took
    wrong = [answer for answer in answers if not ended_well(answer)]
    assert not wrong, wrong[0]
    rate = len(answers) / took
    print(f"{name}: {rate:,.0f} requests/s, {rate * n_tokens:,.0f} tokens/s")
    print(f"    {n_connections} connections, replies of {n_tokens} tokens; server {theirs:.0%} of its core, ", end="")
    print(f"client {ours:.0%} of its own")
    print(f"    {neighbours.warning() or 'undisturbed by other virtual machines'}", flush=True)
    if b"event-stream" in answers[0]:
        n_events = sum(len(events_of(answer)) - 2 for answer in answers[:20]) / min(20, len(answers))
        print(f"    {n_events:.0f} events for {n_tokens} tokens: what comes while others are written is joined")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--stream-interval", type=float, default=0.025)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE if args.serve else CLIENT_CORE})
    if args.serve:
        return serve(args.model, args.step_ms / 1e3, args.stream_interval)
    command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            address = server.stdout.readline().strip()
            for name in CASES:
                measure(name, address, server.pid, args.seconds)
        finally:
            server.terminate()
    return None


if __name__ == "__main__":
    main()
