"""One text over several processes, by the state that its first part hands to the next.

`passes` computes a step's gradient so; `chain` says who holds which part, `hand_over` sends
states from one process to the next, and `prefix` sums up those of all at once.
"""
