"""Readers that turn a user's own files into a Corpus, one file a source. Nothing here imports torch."""
