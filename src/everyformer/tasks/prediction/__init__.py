"""Prediction: rows in, what a trained model answers to each out, in order and in batches."""
