"""Retrieval: what a language model reads from a datastore on disk, beside its context."""
