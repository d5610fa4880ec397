"""The APIs of OpenAI, Anthropic and Ollama over HTTP: connections, routes, formatters, metrics."""
