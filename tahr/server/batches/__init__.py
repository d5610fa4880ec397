"""Files of requests in the form of OpenAI's batches, answered as a server would answer them."""
