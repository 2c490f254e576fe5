"""Models: which tokens go in, what comes out, which loss."""
