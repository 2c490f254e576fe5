"""Search in a store for a text that is scored, without the rows of that text itself.

A row is a window's own at a place if its document reads as the window does, all around the place,
as far as both go: where the document begins or ends inside the window, a separator stands in the
window. So no names or offsets are compared, and a text that stands in the store twice does not find
its twin either. The first token of a document is no value of a store, so it is not compared.
"""

import numpy as np
import torch
from torch import Tensor

from everyformer.datastores.store.exact import Hits
from everyformer.datastores.store.index import Index
from everyformer.datastores.store.store import Store
from everyformer.models.knn_lm import Scored

REACHES = (1, 4, 16)
"""tokens around a hit that are compared before whole windows are"""
BUDGET = 1 << 22
"""tokens that are compared at a time"""


def search_apart(
    index: Index, queries: Tensor, k: int, scored: Scored, separator: int | None
) -> Hits:
    """The ``k`` nearest keys of ``queries`` (N, width) that are not the text's own.

    More than k are searched for, and again more where too few are left. Where the store has too few
    others, distances are inf and rows -1.

    Args:
        separator: the token that ends a document in texts of several.
    """
    store, count = index.store, len(index.store)
    if k > count:
        index.search(queries, k)  # which refuses it
    fetched = min(count, k + 1)
    while True:
        hits = index.search(queries, fetched)
        hidden = torch.from_numpy(own_rows(store, scored, hits.rows.numpy(), separator))
        present = hits.rows >= 0
        short = ((present & ~hidden).sum(-1) < k) & present.all(-1)
        if fetched == count or not short.any():
            break
        fetched = min(count, 2 * fetched)
    first = (hidden | ~present).long().argsort(dim=-1, stable=True)[:, :k]
    missing = (hidden | ~present).gather(-1, first)
    return Hits(
        hits.distances.gather(-1, first).masked_fill(missing, torch.inf),
        hits.rows.gather(-1, first).masked_fill(missing, -1),
    )


def standing_in(store: Store, windows: np.ndarray, separator: int | None) -> int:
    """Number of ``windows`` (B, L) of a text that read as a document of the store does.

    Every part of a window between two separators is looked for by its last token.
    """
    after = np.pad(windows[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    ends = (windows >= 0) & ((after < 0) | (after == separator)) & (windows != separator)
    of, place = np.nonzero(ends)
    rows = {token: np.flatnonzero(store.values == token) for token in np.unique(windows[ends])}
    candidates = [rows[token] for token in windows[of, place]]
    counts = [len(rows_of) for rows_of in candidates]
    of, place = np.repeat(of, counts), np.repeat(place, counts)
    row = np.concatenate(candidates) if candidates else np.zeros(0, np.int64)
    return len(np.unique(of[_reads(store, windows, of, row, place, separator)]))


def own_rows(store: Store, scored: Scored, rows: np.ndarray, separator: int | None) -> np.ndarray:
    """Mask (N, k) of the ``rows`` that are the scored text's own."""
    windows, window, place = (
        t.cpu().numpy() for t in (scored.windows, scored.row, scored.place + 1)
    )
    present = rows >= 0
    same = present & (store.values[np.maximum(rows, 0)] == windows[window, place][:, None])
    query, hit = np.nonzero(same)
    hidden = np.zeros(rows.shape, bool)
    hidden[query, hit] = _reads(
        store, windows, window[query], rows[query, hit], place[query], separator
    )
    return hidden


def _reads(
    store: Store,
    windows: np.ndarray,
    of: np.ndarray,
    row: np.ndarray,
    place: np.ndarray,
    separator: int | None,
) -> np.ndarray:
    """Mask (C,) of the windows ``of`` that read as documents do, ``place`` being at ``row``."""
    left = np.arange(len(of))
    for reach in (*REACHES, None):
        candidates = of[left], row[left], place[left]
        left = left[_agree(store, windows, *candidates, separator, reach)]
    agrees = np.zeros(len(of), bool)
    agrees[left] = True
    return agrees


def _agree(
    store: Store,
    windows: np.ndarray,
    of: np.ndarray,
    row: np.ndarray,
    place: np.ndarray,
    separator: int | None,
    reach: int | None,
) -> np.ndarray:
    """`_reads` as far as ``reach`` tokens before and after the place; None: everywhere."""
    length = windows.shape[1]
    number = store.number_of(row)
    begin = store.starts[number]
    end = begin + np.asarray(store.record.rows, np.int64)[number]
    offsets = np.arange(length) if reach is None else np.arange(-reach, reach + 1)
    agrees = np.zeros(len(of), bool)
    step = max(1, BUDGET // len(offsets))
    for n in range(0, len(of), step):
        part = slice(n, n + step)
        places = place[part, None]
        at = np.broadcast_to(offsets, (len(places), len(offsets))) + (places if reach else 0)
        token = windows[of[part, None], np.clip(at, 0, length - 1)]
        outside = (at < 0) | (at >= length) | (token < 0)
        rows, low, high = row[part, None] + at - places, begin[part, None], end[part, None]
        inside = (rows >= low) & (rows < high)
        value = store.values[np.where(inside, rows, 0)]
        edge = (rows == low - 2) | (rows == high)
        ends = ~edge | (separator is None) | (token == separator)
        agrees[part] = (np.where(inside, value == token, ends) | outside).all(-1)
    return agrees
