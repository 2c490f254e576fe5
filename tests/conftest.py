"""One thread a test process: two pytest workers share two cores, and torch's threads spin."""

import torch

torch.set_num_threads(1)
