"""Ways in which several processes share one training, besides the rows of a batch."""
