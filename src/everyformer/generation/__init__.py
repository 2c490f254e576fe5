"""Generation: decoding with states where the member has them, by recomputing where not."""
