"""Datastores of language models: texts read into a store on the disk, and models that read it."""
