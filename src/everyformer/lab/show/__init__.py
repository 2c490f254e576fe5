"""Pictures of what a model has inside and of what was measured, and the style of all figures."""
