"""The family: every member, its paper, its genes, what it can do and what it claims.

A reader of these three files sees the whole family. A member is a named choice of genes (mixer,
position, memory, block, model); each builds with `create_model`, those whose mixer bears their name
also with `create_mixer`. Where something is not supported, the reason is in place of True.
`BASELINES` are no members, but rows of the same form, so that they are trained and compared alike.
Other packages add rows through the entry-point group ``everyformer.members``, each under its name
(``my-member = "module:ROW"``); so that listing costs nothing, their modules import no torch.
"""

from everyformer.core.member import Member
from everyformer.family.rows import attention, decisions, mixers
from everyformer.family.rows.decisions import BASELINES as BASELINES

FAMILY: tuple[Member, ...] = (*attention.ROWS, *mixers.ROWS, *decisions.ROWS)
