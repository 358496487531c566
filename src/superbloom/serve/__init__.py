"""A model over HTTP: the API, the batches that requests are gathered into, and the page."""
