"""The routes of OpenAI's API, with those of vLLM's and llama.cpp's servers for tokens and templates."""

from tahr.server.openai import bodies, chat, completions, embeddings, replies, rerank, tokenize
from tahr.server.state.route import Route
from tahr.server.status import replies as status_replies
from tahr.server.status import status

# Some clients are given an address without /v1, and llama.cpp's server has these routes there too.
ROUTES = [
    Route(
        "POST",
        "/v1/chat/completions",
        chat.chat,
        bodies.ChatBody,
        replies.ChatReply,
        aliases=("/chat/completions",),
    ),
    Route("POST", "/v1/completions", completions.complete, bodies.CompletionBody, replies.TextReply),
    Route(
        "POST",
        "/v1/embeddings",
        embeddings.embed,
        bodies.EmbeddingBody,
        replies.EmbeddingReply,
        aliases=("/embeddings",),
    ),
    Route(
        "POST",
        "/v1/rerank",
        rerank.rerank,
        rerank.RerankBody,
        rerank.RerankReply,
        aliases=("/rerank", "/v2/rerank"),
    ),
    Route("POST", "/v1/score", rerank.score, rerank.ScoreBody, rerank.ScoreReply, aliases=("/score",)),
    Route("GET", "/v1/models", status.models, gives=status_replies.ModelList, aliases=("/models",)),
    Route("GET", "/v1/models/", status.model, gives=status_replies.ModelCard),
    Route("POST", "/tokenize", tokenize.tokenize, bodies.TokenizeBody, replies.TokenizeReply),
    Route("POST", "/detokenize", tokenize.detokenize, bodies.DetokenizeBody, replies.DetokenizeReply),
    Route("POST", "/apply-template", chat.apply_template, bodies.TemplateBody, replies.TemplateReply),
]
