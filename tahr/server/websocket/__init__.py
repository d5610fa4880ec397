"""WebSockets (RFC 6455) on the connections of the HTTP server, without extensions."""
