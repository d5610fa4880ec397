"""`tahr serve`: models over HTTP, as OpenAI's clients speak it."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tahr.cli.settings import options
from tahr.cli.settings.options import Option
from tahr.cli.settings.sizes import whole_number
from tahr.cli.terminal.console import note
from tahr.config import SamplingParams
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.cli.settings.model_settings import ModelSettings
    from tahr.cli.settings.settings_layers import Layers
    from tahr.engine.step_log import StepLog
    from tahr.server.models.loading import ModelChoice
    from tahr.server.models.registry import ServedModel
    from tahr.server.state.settings import Settings
    from tahr.server.takeover.taking import Taking

HELP = "answer OpenAI's API over HTTP, with a chat page"

EXAMPLES = """\
examples:
  tahr serve                                        the default model on http://127.0.0.1:8080
  tahr serve qwen3:0.6b -p 9000                     another model, another port
  tahr serve --model chat=qwen3:0.6b --model smollm2:135m
                                                    two models; the first answers when none is named
  tahr serve --model chat=qwen3:0.6b,ctx=4096,kv_dtype=q8_0 --model draft=smollm2:135m,threads=2,temperature=0
                                                    options of one model, over those of all
  tahr serve qwen3:0.6b --lora sql=adapters/sql     the model qwen3:0.6b:sql beside qwen3:0.6b itself
  tahr serve qwen3:0.6b --takeover                  upgrade: load beside the server on this port, then take its place
  TAHR_API_KEY=secret tahr serve --host 0.0.0.0     for the whole network, with a key

then:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": true}'

or open http://127.0.0.1:8080 in a browser. Any OpenAI client works: its base URL is http://127.0.0.1:8080/v1.
/health says 200 once tokens can be generated, /metrics is for Prometheus, /openapi.json describes everything.
Ctrl-C lets running requests finish for --drain-timeout seconds; a second one ends at once."""

SERVER = (
    Option(("--rate-limit",), "rate_limit", whole_number, "requests per minute and key (429 beyond)"),
    Option(("--rate-limit-total",), "rate_limit_total", whole_number, "requests per minute of all keys together"),
    Option(("--max-body-bytes",), "max_body_bytes", whole_number, "largest request body (default 10 MiB)"),
    Option(("--max-requests",), "max_requests", whole_number, "requests in flight before 503 (default 4096)"),
    Option(("--max-websockets",), "max_websockets", whole_number, "WebSockets that may be open (default 256; 0: none)"),
    Option(
        ("--models-budget",),
        "models_budget_bytes",
        whole_number,
        "memory of all loaded models, such as 8g: the first is loaded at the start, the others on demand",
    ),
    Option(
        ("--keep-alive",),
        "model_keep_alive_s",
        float,
        "seconds a model without requests stays loaded (default: ever)",
    ),
    Option(
        ("--sleep-after",),
        "sleep_after_s",
        float,
        "seconds after which a model without requests gives memory back until the next one (default: never)",
    ),
    Option(("--max-tokens-cap",), "max_tokens_cap", whole_number, "longest reply a request may ask for"),
    Option(("--request-timeout",), "request_timeout_s", float, "seconds a request may take (0: as long as it needs)"),
    Option(
        ("--stream-interval",),
        "stream_interval_s",
        float,
        "seconds between the events of a stream (default 0.025; 0: an event for every token)",
    ),
    Option(("--session-cache",), "session_cache", str, "off, or memory: remember conversations by X-Tahr-Session"),
    Option(
        ("--session-cache-max-entries",), "session_max_entries", whole_number, "conversations to remember (default 128)"
    ),
    Option(("--session-cache-max-tokens",), "session_max_tokens", whole_number, "tokens of each (default 4096)"),
    Option(
        ("--response-store-max-entries",),
        "response_max_entries",
        whole_number,
        "responses to store (default 1024; 0: none)",
    ),
    Option(
        ("--response-store-max-bytes",), "response_max_bytes", whole_number, "bytes of all of them (default 64 MiB)"
    ),
    Option(("--response-store-max-age",), "response_max_age_s", float, "seconds to store each (default a day)"),
    Option(
        ("--state-dir",),
        "state_dir",
        str,
        "a folder for what outlives the server: stored responses, files, batches, keys, usage",
    ),
    Option(("--file-max-bytes",), "file_max_bytes", whole_number, "largest uploaded file (default 200 MiB)"),
    Option(("--file-store-max-bytes",), "file_store_max_bytes", whole_number, "bytes of all files (default 16 GiB)"),
    Option(("--file-store-max-entries",), "file_store_max_entries", whole_number, "files to keep (default 4096)"),
    Option(("--file-store-max-age",), "file_store_max_age_s", float, "seconds to keep each (default 30 days)"),
    Option(
        ("--drain-timeout", "--grace"),
        "drain_timeout_s",
        float,
        "seconds for running requests to finish when the server ends (default 30)",
    ),
)
WATCHING = (
    Option(("--log-interval",), "log_interval_s", float, "seconds between throughput lines (0: none)"),
    Option(
        ("--otlp-endpoint",),
        "otlp_endpoint",
        str,
        "send traces to this OpenTelemetry collector (extra `otel`)",
    ),
    *options.TRACES,
    Option(("--request-dump-dir",), "request_dump_dir", str, "a folder that gets a folder per request, without texts"),
)
WARM, COLD = "warm", "cold"  # kinds of takeovers
SECTIONS = ("sampling", "engine", "server")  # sections of the settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a server."""
    parser.epilog = EXAMPLES
    options.add_model(parser)
    add = parser.add_argument
    add(
        "-m",
        "--model",
        dest="models",
        action="append",
        metavar="[NAME=]MODEL[,OPTION=VALUE...]",
        help="a model to serve (repeatable); options as below without dashes, such as ctx=4096,temperature=0",
    )
    text = "also the models that `tahr list` shows, loaded on demand (needs --models-budget)"
    add("--all-models", action="store_true", help=text)
    add("--served-model-name", action="append", metavar="NAME", help="another name of the first model (repeatable)")
    add("--host", help="address to listen on (default 127.0.0.1: only this machine)")
    add("-p", "--port", type=whole_number, help="port (default 8080; 0: any free one)")
    add("--addr", metavar="HOST:PORT", help="both at once")
    text = "come in place of your server on this port without losing a client; with =cold it ends before this one loads"
    add("--takeover", nargs="?", const=WARM, type=takeover_kind, metavar="cold", help=text)
    add(
        "--api-key",
        dest="api_keys",
        action="append",
        metavar="KEY",
        help="a key clients must send (repeatable; or TAHR_API_KEY)",
    )
    text = "the key of routes that change the server (or TAHR_SERVER_ADMIN_KEY); without it, only this machine may"
    add("--admin-key", metavar="KEY", help=text)
    add(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        metavar="ORIGIN",
        help="a site whose pages may use the server (repeatable; * for all)",
    )
    add(
        "--allowed-hosts",
        dest="allowed_hosts",
        action="append",
        metavar="NAME",
        help="a name clients may use for this server, besides localhost, its own and addresses (repeatable; * for all)",
    )
    text = "one prefix cache for all API keys: cached_tokens then tells clients of each other's prompts"
    add("--shared-prefix-cache", action="store_true", default=None, help=text)
    group = parser.add_argument_group("limits")
    for option in SERVER:
        option.add_to(group)
    group = parser.add_argument_group("logs and traces (none holds prompts or replies, unless you ask for it)")
    group.add_argument("--no-request-log", action="store_true", help="no lines about single requests")
    for option in WATCHING:
        option.add_to(group)
    text = "put prompts and replies into those folders too"
    group.add_argument("--request-dump-texts", action="store_true", default=None, help=text)
    options.add_sampling(parser, "sampling (for requests that leave it open; else the model's authors chose)")
    options.add_engine(parser)
    options.add_batching(parser)
    options.add_speculation(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Check all options, then load and serve until a signal comes."""
    from tahr.cli.settings.model_settings import NamedModel, models_of, settings_for

    layers = layers_of(args)
    settings = settings_of(args, layers)
    choices = models_of(args, layers, note)
    if only_shows(args, layers, choices, SECTIONS):
        return 0

    from tahr.hub.progress import Progress
    from tahr.server.lifecycle import HttpServer
    from tahr.server.models.loading import LoadOptions, check_names, served_model, served_models
    from tahr.server.status.servers import Announcement

    models = [choice.model for choice in choices]
    check_names(models)
    if args.all_models and settings.models_budget_bytes is None:
        raise ConfigError("--all-models loads models on demand, so it needs --models-budget: say how much memory.")
    start_log(requests=not args.no_request_log)
    taking = taken_over(args.takeover, settings, models) if args.takeover else None
    with step_logs(settings.decision_trace_jsonl, settings.chrome_trace) as logs:
        loading = LoadOptions(Progress(sys.stderr), logs, settings.stream_interval_s, settings.models_budget_bytes)

        def pulled(name: str, source: str) -> "ServedModel":
            made = served_model(settings_for(NamedModel(source, name), layers, note).model, loading)
            made.on_demand = True
            return made

        def served() -> "list[ServedModel]":
            named = served_models(models, loading)
            return [*named, *here(named, pulled)] if args.all_models else named

        server = HttpServer(settings, served, announce, pulled, Announcement(note), taking)
        if not settings.is_local and server.state.keys.is_open:
            note(f"warning: everyone who can reach {settings.host} can use this server: set --api-key.")
        meanwhile = f"{server.address}/health says 503"
        if taking:
            meanwhile = "its clients wait" if taking.is_cold else f"the server on {taking.address} answers"
        note(f"Loading {', '.join(model.source for model in models)}; {meanwhile} meanwhile.")
        try:
            return server.run()
        finally:
            if taking and not taking.has_place:
                note(f"The server on {taking.address} was not taken over.")


def takeover_kind(text: str) -> str:
    if text not in (WARM, COLD):
        raise argparse.ArgumentTypeError(f"{text} is no kind of takeover: write it with =cold or nothing, after MODEL")
    return text


def taken_over(kind: str, settings: "Settings", models: "Sequence[ModelChoice]") -> "Taking | None":
    """The takeover of the server on this address, if there is one; a cold one has ended it."""
    from tahr.hub.progress import Progress
    from tahr.server.models.loading import LoadOptions, served_models
    from tahr.server.takeover.taking import begin

    taking = begin(settings, kind == COLD)
    if taking is None:
        note("No server of yours runs on this address: there is nothing to take over.")
    elif kind == COLD:
        # A model that is not there must not cost the server that runs.
        options = LoadOptions(Progress(sys.stderr), [], settings.stream_interval_s, settings.models_budget_bytes)
        for model in served_models(models, options):
            if model.loader:
                model.loader.n_bytes()
        note(f"The server on {taking.address} ends before this one loads; its clients wait.")
        taking.end_running()
    return taking


def only_shows(
    args: argparse.Namespace, layers: "Layers", choices: "list[ModelSettings]", sections: Sequence[str]
) -> bool:
    """Print the settings or the models, where nothing else was asked for."""
    from tahr.cli.settings.model_settings import effective_json
    from tahr.cli.verbs.doctor import describe_model

    if args.effective_config_json:
        print(effective_json(layers, choices, sections, note))
    elif args.dry_run:
        print("\n\n".join(describe_model(choice.model.source, choice.model.quantization) for choice in choices))
    return bool(args.effective_config_json or args.dry_run)


def here(named: "Sequence[ServedModel]", make: "Callable[[str, str], ServedModel]") -> "list[ServedModel]":
    """The models on this machine that are not named already."""
    from tahr import hub

    names = {name.lower() for model in named for name in model.names}
    ready = [entry.name for entry in hub.list_models() if entry.status == "ready"]
    return [make(name.removeprefix("ollama:"), name) for name in ready if name.lower() not in names]


@contextmanager
def step_logs(decisions: str | None, picture: str | None) -> "Iterator[list[StepLog]]":
    """The files that get a record of every step."""
    from tahr.engine.step_traces import ChromeTrace, DecisionLog

    wanted: list[tuple[Callable[[Path], StepLog], str | None]] = [
        (DecisionLog, decisions),
        (ChromeTrace, picture),
    ]
    logs = [log(Path(path).expanduser()) for log, path in wanted if path]
    try:
        yield logs
    finally:
        for each in logs:
            each.close()


def announce(address: str, models: "list[ServedModel]") -> None:
    for model in models:
        names = ", ".join(model.names)
        engine = model.loaded_engine
        how = f" on {engine.backend_summary}, context {engine.context_size} tokens" if engine else ": loaded on demand"
        note(names + how)
    note(f"Ready on {address} (OpenAI API at {address}/v1, chat page at {address}/).")


def layers_of(args: argparse.Namespace) -> "Layers":
    """The settings of the server from all places."""
    return layers_of_sections(args, SECTIONS, address_of(args))


def layers_of_sections(
    args: argparse.Namespace, sections: Sequence[str], more: Mapping[str, Any] = MappingProxyType({})
) -> "Layers":
    """Sections of the settings from all places; `more` are flags that set other keys than their names say."""
    from tahr.cli.settings.settings_layers import flags_in, read_layers

    flags = {**flags_in(args, sections), **options.engine_flags(args), **more}
    return read_layers(args, sections, flags, note)


def settings_of(args: argparse.Namespace, layers: "Layers | None" = None) -> "Settings":
    """The server that was asked for, checked. TAHR_API_KEY is one key more, wherever the others come from."""
    from tahr.server.state.settings import Settings

    values = (layers or layers_of(args)).values
    said: dict[str, Any] = values("server")
    keys = [*said.pop("api_keys", ()), *filter(None, [os.environ.get("TAHR_API_KEY")])]
    return Settings(**said, api_keys=tuple(keys), sampling=SamplingParams.of(values("sampling")))


def address_of(args: argparse.Namespace) -> dict[str, Any]:
    """Host and port, where --addr says both."""
    if args.addr is None:
        return {}
    if args.host is not None or args.port is not None:
        raise ConfigError("--addr says host and port at once: leave out --host and --port.")
    host, colon, port = args.addr.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"--addr {args.addr} is not an address: write HOST:PORT, such as 127.0.0.1:8080.")
    return {"server.host": host.strip("[]") or "127.0.0.1", "server.port": int(port)}


def start_log(requests: bool) -> None:
    """Lines of log go to stderr; other libraries stay quiet unless something is wrong."""
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    for name in ("tahr.server", "tahr.kv"):
        logging.getLogger(name).setLevel(logging.INFO if requests else logging.WARNING)
