"""Exchange with other libraries: checkpoints, programs, and modules of torch and transformers."""
