"""Retrieval: what a language model reads from a datastore on disk, with its context."""
