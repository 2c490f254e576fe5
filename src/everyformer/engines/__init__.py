"""What members share: softmax with positions, running averages, banded and tiled sums, rows."""
