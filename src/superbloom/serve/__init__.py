"""A model over HTTP: the API, the gathering of requests into batches, and the page to play with it."""
