"""The page of a comparison, its table and its figures, and the pages of members."""
