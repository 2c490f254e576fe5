"""Ways in which several processes share one training, beside the rows of a batch."""
