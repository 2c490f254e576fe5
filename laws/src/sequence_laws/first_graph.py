"""One graph, compiled and exported as this module is imported.

The compiler and the exporter fill their tables with their first graph, for a second and a half: a
sweep does that once, before its processes are forked.
"""

import torch
from torch import nn

_PLAIN, _READ = nn.Linear(2, 2), torch.zeros(2, 2)
with torch.no_grad():
    torch.compile(_PLAIN, backend="eager", fullgraph=True)(_READ)
torch.export.export(_PLAIN, (_READ,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()(_READ)
torch._dynamo.reset()
