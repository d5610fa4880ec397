"""From a request to its response, for all APIs."""
