"""The OpenAI API over HTTP: connections, routes, formatters, metrics."""
