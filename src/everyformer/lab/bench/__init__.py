"""Time, memory and FLOPs against length: a fresh process a point, with peers."""
