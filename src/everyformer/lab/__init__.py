"""Work upon models and runs, which the family never imports: compare, measure, draw, convert."""
