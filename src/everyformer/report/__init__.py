"""What a person looks at: figures, pictures of what was learned, the page of a comparison."""
