"""A request becomes its response, for all APIs."""
