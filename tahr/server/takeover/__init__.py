"""A new server takes the listening socket of a running one, which serves its clients to the end."""
