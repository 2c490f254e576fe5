"""Figures, pictures of what was learned, and the page of a comparison."""
