"""What is promised of a model with a probability, and what it was tested with."""
