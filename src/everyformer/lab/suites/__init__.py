"""Suites: probes of what a mechanism can do, as kinds of data.

probe       what every probe is; its rows, three streams, chance and shortcut
mad         recall, noisy and fuzzy, selective copying, memorisation, compression (Poli et al. 2024)
compress    the task of the last of them; compressor, its model
mqar        multi-query associative recall and its variants                 (Arora et al. 2023)
state       parity, sums and products of permutations                    (Grazzi et al. 2024)
others      induction, selective copying with distractors, a needle
kind        probes as data of `train`, `compare` and `eval`
presets     settings of probes, members of the board; config, options of a suite; guests
run         a comparison for each probe; board, what comes of them; page, as people read it
abilities   what the recorded board measured, for `list --can`
"""
