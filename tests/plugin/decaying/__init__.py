"""A member of its own package: see docs/adding-a-member.md."""
