"""Early exits: options, thresholds, costs, and promises with the probability that they hold."""
