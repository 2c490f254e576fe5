"""One graph, compiled as this module is imported.

The compiler fills its tables with its first graph, for a second: a sweep does that once, before its
processes are forked.
"""

import torch
from torch import nn

_PLAIN, _READ = nn.Linear(2, 2), torch.zeros(2, 2)
with torch.no_grad():
    torch.compile(_PLAIN, backend="eager", fullgraph=True)(_READ)
torch._dynamo.reset()
