"""The machine beneath: files, processes, memory, signals, late imports; knows nothing of models."""
