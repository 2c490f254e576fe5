"""Signature experiments: the claim of each paper as numbers over seeds and a figure, in minutes."""
