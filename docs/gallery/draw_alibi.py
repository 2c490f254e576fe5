"""
ALiBi
=====

Linear biases, a slope for each head: what a query of the last position loses with distance.
"""

import matplotlib.pyplot as plt
import numpy as np

import everyformer as ef

distance = np.arange(64)
figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for head, slope in enumerate(ef.functional.alibi_slopes(8), 1):
    axes.plot(distance, np.exp(-slope * distance), label=f"head {head}")
axes.set(xlabel="tokens back", ylabel="factor of the weight")
axes.legend(ncols=2)
plt.show()
