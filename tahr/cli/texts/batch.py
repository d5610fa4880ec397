"""`tahr batch`: a file of requests, answered without a server."""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from tahr.cli.settings import options
from tahr.cli.terminal.console import note
from tahr.cli.verbs.serve import layers_of_sections, only_shows, start_log
from tahr.config import SamplingParams
from tahr.errors import LoadError
from tahr.regular_file import open_regular

if TYPE_CHECKING:
    from tahr.cli.settings.settings_layers import Layers
    from tahr.server.batches.results import ResultFiles
    from tahr.server.batches.runner import LoneRun
    from tahr.server.models.loading import ModelChoice
    from tahr.server.models.registry import ServedModel
    from tahr.server.state.state import ServerState

HELP = "answer a file of requests in the form of OpenAI's batches"

EXAMPLES = """\
examples:
  tahr batch requests.jsonl replies.jsonl qwen3:0.6b
  tahr batch requests.jsonl replies.jsonl -m qwen3:0.6b --served-model-name gpt-4o-mini
  tahr batch texts.jsonl vectors.jsonl minilm --errors failed.jsonl

a line of requests:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 100}}

Lines are answered as a server would (chats, completions, embeddings, responses), in any order. What cannot be answered
goes to the file of errors. The same command again goes on where a run has ended, however it did."""
SECTIONS = ("sampling", "engine")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, which model, how it runs."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("requests", type=Path, metavar="IN", help="a request a line")
    add("replies", type=Path, metavar="OUT", help="a reply a line; what is there already is not asked for again")
    options.add_model(parser)
    add("--errors", type=Path, metavar="FILE", help="where errors go (default: OUT with .errors before its suffix)")
    text = "a model (repeatable, as with `tahr serve`); bodies that name none get the first"
    add("-m", "--model", dest="models", action="append", metavar="[NAME=]MODEL[,OPTION=VALUE...]", help=text)
    text = "another name of the first model, such as the one in the file (repeatable)"
    add("--served-model-name", action="append", metavar="NAME", help=text)
    options.add_sampling(parser, "sampling (for requests that leave it open; else the model's authors chose)")
    options.add_engine(parser)
    options.add_batching(parser)
    options.add_speculation(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Check options and files, load the models, answer what has no result yet."""
    from tahr.cli.settings.model_settings import models_of

    layers = layers_of_sections(args, SECTIONS)
    choices = models_of(args, layers, note)
    if only_shows(args, layers, choices, SECTIONS):
        return 0

    from tahr.server.batches.results import ResultFiles
    from tahr.server.batches.runner import n_to_do
    from tahr.server.models.loading import check_names

    models = [choice.model for choice in choices]
    check_names(models)
    errors = args.errors or args.replies.with_suffix(f".errors{args.replies.suffix}")
    with open_requests(args.requests) as requests, closing(ResultFiles(args.replies, errors, requests)) as results:
        files = BatchFiles(requests, results, n_to_do(requests, results))
        if files.n_to_do:
            return run_all(layers, models, files)
        note(f"Nothing is left to do: all {results.n_done} lines have a result.")
    return 0


def run_all(layers: "Layers", models: "list[ModelChoice]", files: "BatchFiles") -> int:
    """Load the models, answer the requests, and return the exit code."""
    from tahr.hub.progress import Progress
    from tahr.server.http.event_loop import loop_factory
    from tahr.server.models.loading import LoadOptions, served_models

    start_log(requests=False)
    job = BatchJob(layers, served_models(models, LoadOptions(Progress(sys.stderr))), files)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(job.run())
    if job.is_in_native_code:  # the interpreter must not be taken down under a thread that loads a model
        sys.stderr.flush()
        os._exit(code)
    return code


def open_requests(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise LoadError(f"The requests {path} cannot be read: {error.strerror}.") from error


class BatchFiles(NamedTuple):
    """The requests, the files of results, and how many lines have no result yet."""

    requests: BinaryIO
    results: "ResultFiles"
    n_to_do: int


class BatchJob:
    """The models, the run, and the signals that end it."""

    def __init__(self, layers: "Layers", models: "list[ServedModel]", files: BatchFiles):
        self._layers = layers
        self._models = models
        self._files = files
        self._signal = 0
        self._state: ServerState | None = None

    @property
    def is_in_native_code(self) -> bool:
        return self._state is not None and self._state.pool.is_in_native_code

    async def run(self) -> int:
        """Answer the requests, and return the exit code."""
        task = asyncio.create_task(self._run())
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number, task)
        try:
            await task
        except asyncio.CancelledError:
            note(f"{signal.Signals(self._signal).name}: the same command goes on from here.")
            return 128 + self._signal
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        return 0

    def _on_signal(self, number: int, task: "asyncio.Task[None]") -> None:
        if self._signal:
            os._exit(128 + number)
        self._signal = number
        task.cancel()

    async def _run(self) -> None:
        from tahr.server.app import App
        from tahr.server.batches.runner import LoneRun
        from tahr.server.lifecycle import SWITCH_S
        from tahr.server.state.settings import Settings
        from tahr.server.state.state import ServerState

        sampling = SamplingParams.of(self._layers.values("sampling"))
        state = self._state = ServerState(Settings(sampling=sampling))
        switch_s = sys.getswitchinterval()
        try:
            state.models.put(self._models)
            await self._load(state)
            state.models.open()
            sys.setswitchinterval(SWITCH_S)
            run = LoneRun(App(state), state, self._files.requests, self._files.results)
            await run_beside_bar(run, self._files)
        finally:
            sys.setswitchinterval(switch_s)
            await state.pool.close()
            state.close()

    async def _load(self, state: "ServerState") -> None:
        from tahr.server.http.errors import HttpError
        from tahr.server.models.pool import start_failure

        try:
            await state.pool.open()
        except HttpError as error:
            raise start_failure(error, len(self._models)) from None


async def run_beside_bar(run: "LoneRun", files: BatchFiles) -> None:
    """Answer all lines beside a bar, and say what came of them."""
    from time import perf_counter

    from tahr.library.progress_bar import Bar

    began = perf_counter()
    bar = Bar(files.n_to_do)
    try:
        await run.run(lambda: bar.update(lambda: (run.n_replies + run.n_errors, run.tokens.n_output)))
    finally:
        bar.close()
        n_before = files.results.n_done
        before = f" ({n_before} were done before)" if n_before else ""
        speed = run.tokens.n_output / max(perf_counter() - began, 1e-9)
        counts = f"{run.n_replies} replies, {run.n_errors} errors{before}"
        note(f"{counts}, {run.tokens.n_prompt} tokens in, {run.tokens.n_output} out, {speed:.1f} tokens/s")
