"""Pictures of `everyformer show`, by name."""
