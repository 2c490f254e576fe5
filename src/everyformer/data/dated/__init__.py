"""Series with times, to be forecast: read from tables, laid on a grid, cut by time, windowed."""
