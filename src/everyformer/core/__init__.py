"""The contract: masks, states, outputs, mixers, registries, configs, errors, traces."""
