"""Suites: probes of what a mechanism can do, as kinds of data.

probe       what every probe is; its rows, three streams, chance and shortcut
mad         recall, noisy and fuzzy recall, selective copying, memorisation   (Poli et al. 2024)
mqar        multi-query associative recall and its variants                 (Arora et al. 2023)
state       parity, sums and products of permutations                    (Grazzi et al. 2024)
others      induction, selective copying with distractors, a needle
kind        probes as data of `train`, `compare` and `eval`
"""
