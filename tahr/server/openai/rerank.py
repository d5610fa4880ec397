"""/v1/rerank in the shape of Cohere's and Jina's API, and /v1/score in that of vLLM's."""

import time
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Struct

from tahr.library.embeddings import EmbeddingOptions
from tahr.library.inputs.rerank import PairPlan, plan_pairs, ranked
from tahr.server.bodies.decoding import Inert, decode
from tahr.server.bodies.inputs import TextItem
from tahr.server.http.errors import bad_field, request_id
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.chosen import chosen_model
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.openai.embeddings import check_lengths, field_errors
from tahr.server.openai.replies import EmbeddingUsage
from tahr.server.replies.prompts import MAX_PROMPTS, check_text_size
from tahr.server.state.state import ServerState


class RerankBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/rerank."""

    query: str
    documents: list[str | TextItem]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False
    truncate_prompt_tokens: int | None = None
    user: Inert = None


class ScoreBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/score: one text with each of several, or each with the one at its place."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    user: Inert = None


class RankedText(Struct):
    text: str


class RankedResult(Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: RankedText | None = None


class RerankReply(Struct):
    """The reply of /v1/rerank; the best document comes first."""

    id: str
    model: str
    results: list[RankedResult]
    usage: EmbeddingUsage
    object: str = "list"


class PairScore(Struct):
    index: int
    score: float
    object: str = "score"


class ScoreReply(Struct):
    """The reply of /v1/score."""

    id: str
    created: int
    model: str
    data: list[PairScore]
    usage: EmbeddingUsage
    object: str = "list"


RERANK_BODY = msgspec.json.Decoder(RerankBody)
SCORE_BODY = msgspec.json.Decoder(ScoreBody)


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Pairs to score, checked."""

    model: ServedModel
    seconds: list[str]  # the documents
    plan: PairPlan


async def rerank(request: HttpRequest, state: ServerState) -> None:
    """Documents by how well they answer a query."""
    sent = await request.body()
    body, requested = await state.text_pool.run_for(request, partial(prepare_rerank, state.models, sent), len(sent))
    scores = await scored(request, state, requested)
    await request.respond(await state.text_pool.run(partial(written_ranks, body, requested, scores)))


async def score(request: HttpRequest, state: ServerState) -> None:
    """How well texts go together."""
    sent = await request.body()
    body, requested = await state.text_pool.run_for(request, partial(prepare_score, state.models, sent), len(sent))
    scores = await scored(request, state, requested)
    data = [PairScore(i, each) for i, each in enumerate(scores)]
    name = body.model or requested.model.name
    made = ScoreReply(f"score-{request_id()}", int(time.time()), name, data, usage(requested.plan))
    await request.respond(await state.text_pool.run(partial(encode, made)))


async def scored(request: HttpRequest, state: ServerState, requested: PairRequest) -> list[float]:
    """The score of every pair."""
    with state.admission.computing(request, requested.model, requested.plan.n_tokens):
        vectors = await requested.model.engine.embed(requested.plan.texts, EmbeddingOptions())
        return await state.text_pool.run(partial(requested.plan.scores, vectors))


def prepare_rerank(models: ModelRegistry, data: bytes) -> tuple[RerankBody, PairRequest]:
    """Check a request, and turn its pairs into tokens."""
    body = decode(RERANK_BODY, data)
    if body.top_n is not None and body.top_n < 1:
        raise bad_field("top_n", f"top_n is {body.top_n}, but it must be at least 1.")
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    return body, prepare(models, body, ("query", "documents"), [body.query], documents)


def prepare_score(models: ModelRegistry, data: bytes) -> tuple[ScoreBody, PairRequest]:
    """Prepare a request of /v1/score."""
    body = decode(SCORE_BODY, data)
    firsts, seconds = ([each] if isinstance(each, str) else each for each in (body.text_1, body.text_2))
    if len(firsts) not in (1, len(seconds)):
        message = f"text_1 has {len(firsts)} texts and text_2 {len(seconds)}: send one text_1, or as many."
        raise bad_field("text_1", message)
    return body, prepare(models, body, ("text_1", "text_2"), firsts, seconds)


def prepare(
    models: ModelRegistry,
    body: RerankBody | ScoreBody,
    fields: tuple[str, str],
    firsts: list[str],
    seconds: list[str],
) -> PairRequest:
    model, lora = chosen_model(models, body.model, ())
    if lora:
        raise bad_field("model", "Adapters change how a model generates, not how it compares texts: name the model.")
    for field, texts in zip(fields, (firsts, seconds), strict=True):
        check_texts(model.engine, field, texts, body.truncate_prompt_tokens is not None)
    inputs = model.engine.inputs
    truncate = body.truncate_prompt_tokens
    with field_errors("truncate_prompt_tokens"):
        inputs.limit(truncate)
    with field_errors("model" if inputs.encoding is None else fields[0]):
        plan = plan_pairs(inputs, firsts, seconds, truncate)
    check_lengths(model.engine, plan.texts, fields[1])
    return PairRequest(model, seconds, plan)


def check_texts(engine: ServedEngine, field: str, texts: list[str], is_cut: bool) -> None:
    if not texts or not all(texts):
        raise bad_field(field, f"{field} is empty or holds an empty text: give at least one word.")
    if len(texts) > MAX_PROMPTS:
        raise bad_field(field, f"{field} has {len(texts)} entries, but this server takes {MAX_PROMPTS} at most.")
    for text in texts:
        if not is_cut:
            check_text_size(engine, text, field)


def written_ranks(body: RerankBody, requested: PairRequest, scores: list[float]) -> bytes:
    texts = requested.seconds
    results = [
        RankedResult(each.index, each.score, RankedText(texts[each.index]) if body.return_documents else None)
        for each in ranked(scores, body.top_n)
    ]
    return encode(
        RerankReply(f"rerank-{request_id()}", body.model or requested.model.name, results, usage(requested.plan))
    )


def usage(plan: PairPlan) -> EmbeddingUsage:
    return EmbeddingUsage(plan.n_tokens, plan.n_tokens)
