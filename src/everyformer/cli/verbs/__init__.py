"""Verbs of the command line, one file each with its options and `run`."""
