"""Exchange with other libraries: programs, and modules of torch and transformers."""
