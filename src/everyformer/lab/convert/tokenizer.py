"""Tokenizers of checkpoints into ours and back: `tokenizer.json` of the package `tokenizers`.

Which token ends a text, and which one hides another, is in other files: tokenizer_config.json, in
special_tokens_map.json, or as a number in config.json. Marian has source.spm, target.spm and
vocab.json instead, which the package `sentencepiece` reads.
"""

from pathlib import Path
from typing import Any, NamedTuple

from everyformer.core.config import converted
from everyformer.core.errors import CheckpointError, ConfigError, DataError, UnsupportedError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.marian import SIDES, MarianTokenizer
from everyformer.data.tokenizers.package import BPETokenizer, HubTokenizer, tokenizers_package
from everyformer.system.files import file_written_whole, write_text
from everyformer.system.plain import from_json, to_json

MARKS = "special_tokens_map.json", "tokenizer_config.json"
MASK = "[MASK]"
"""spelling of a mask that a model has beside the tokens of its tokenizer"""
PIECES = "vocab.json"
SPM = {side: f"{side}.spm" for side in SIDES}
"""with `PIECES` the files of a Marian tokenizer"""
USUAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""marks of a Marian tokenizer where no file says others"""
ADDED = "added_tokens.json"
STRIPS = ("lstrip", "rstrip", "single_word")
"""of an added token: what else of the text it takes"""


class ReadTokenizer(NamedTuple):
    """The tokenizer of a checkpoint."""

    tokenizer: Tokenizer | None
    note: str
    """what it is, or why there is none, for people"""


def import_tokenizer(folder: Path, vocabulary: int) -> ReadTokenizer:
    """The tokenizer in a checkpoint's folder, for a model of ``vocabulary`` tokens.

    Raises:
        CheckpointError: it is damaged, or has more tokens than the model.
        UnsupportedError: a Marian tokenizer of a form that nothing here corresponds to.
        MissingExtraError: the package tokenizers, or sentencepiece, is not installed.
    """
    marks, config = _marks(folder), _table(folder / "config.json")
    if config.get("model_type") == "marian" and any(
        (folder / name).exists() for name in SPM.values()
    ):
        return _marian(folder, vocabulary, marks)
    file = folder / "tokenizer.json"
    if not file.exists():
        older = [p.name for p in (*folder.glob("vocab.*"), *folder.glob("*.spm"))]
        older += [p.name for p in folder.glob("*.model")]
        others = f" ({', '.join(sorted(older))} alone cannot be read)" if older else ""
        return ReadTokenizer(
            None,
            f"no tokenizer.json was found{others}: the model reads tokens, no text. transformers "
            "writes one with AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )
    try:
        model = file.read_text(encoding="utf-8")
        plain = HubTokenizer(model, vocabulary, None, None)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
    ids = {name: plain.number(marks.get(f"{name}_token")) for name in ("eos", "sep", "mask")}
    number = config.get("eos_token_id")
    number = number[0] if isinstance(number, list) and number else number
    named = number if isinstance(number, int) and 0 <= number < vocabulary else None
    ends = (end for end in (ids["eos"], named, ids["sep"]) if end is not None)
    names = {use: mark for use, mark in marks.items() if plain.number(mark) is not None}
    result = HubTokenizer(model, vocabulary, next(ends, None), ids["mask"], names)
    return ReadTokenizer(result, f"hub, {_counted(plain.known, vocabulary)}")


def _counted(known: int, vocabulary: int) -> str:
    beyond = vocabulary - known
    return f"{known:,} tokens" + (
        f", and {beyond:,} of the model stand for no text" if beyond else ""
    )


def _marian(folder: Path, vocabulary: int, marks: dict[str, str]) -> ReadTokenizer:
    """The tokenizer of a Marian checkpoint, as `transformers.MarianTokenizer` reads it."""
    missing = [name for name in (*SPM.values(), PIECES) if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"the tokenizer in {folder} lacks {' and '.join(missing)}: a Marian tokenizer is "
            f"{', '.join(SPM.values())} and {PIECES} together"
        )
    options, pieces = _table(folder / "tokenizer_config.json"), _table(folder / PIECES)
    if options.get("separate_vocabs"):
        raise UnsupportedError(
            f"the tokenizer in {folder} numbers source and target apart (separate_vocabs), which "
            "has no counterpart here: one table serves both"
        )
    marks = USUAL | marks
    added: dict[str, Any] = {mark: pieces[mark] for mark in marks.values() if mark in pieces}
    added |= _table(folder / ADDED) | _added(folder, options)
    try:
        models = {side: (folder / name).read_bytes() for side, name in SPM.items()}
        tokenizer = MarianTokenizer(
            models, pieces, vocabulary, marks["eos_token"], marks["unk_token"], added
        )
    except (OSError, DataError) as error:
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
    lacking = [f"{tokenizer.lacking[side]:,} of {name}" for side, name in SPM.items()]
    few = f"; pieces without a number, read as {tokenizer.unknown}: {', '.join(lacking)}"
    note = f"Marian's, {_counted(tokenizer.known, vocabulary)}"
    return ReadTokenizer(tokenizer, note + (few if any(tokenizer.lacking.values()) else ""))


def _added(folder: Path, options: dict[str, Any]) -> dict[str, int]:
    """Tokens that a tokenizer_config.json adds to those of the table, with their numbers."""
    name, file = "added_tokens_decoder", folder / MARKS[1]
    try:
        tokens = converted(dict[str, dict[str, Any]], options.get(name, {}), name)
        result = {str(token["content"]): int(number) for number, token in tokens.items()}
    except (ConfigError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{file} is damaged: '{name}' must give tokens, each a table with its 'content', under "
            "their numbers"
        ) from error
    for token in tokens.values():
        if any(token.get(taken) for taken in STRIPS):
            raise UnsupportedError(
                f"{file} has the added token '{token['content']}' with {' or '.join(STRIPS)}, "
                "which has no counterpart here"
            )
    return result


def export_tokenizer(
    tokenizer: Tokenizer, folder: Path, tokens: int, mask: int | None = None
) -> None:
    """Write a tokenizer as transformers reads it, if `exportable`.

    Args:
        tokens: the longest text that the model takes.
        mask: the token by which the model hides others, where the tokenizer has none.
    """
    if isinstance(tokenizer, MarianTokenizer):
        _export_marian(tokenizer, folder, tokens)
        return
    if not isinstance(tokenizer, BPETokenizer | HubTokenizer):
        return
    model = None if mask is None else _with_mask(tokenizer, mask)
    write_text(folder / "tokenizer.json", model or tokenizer.model)
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": tokens,
    }
    if isinstance(tokenizer, HubTokenizer):
        marks = {"eos_token": tokenizer.separator, "mask_token": tokenizer.mask}
        texts = {name: None if i is None else tokenizer.token(i) for name, i in marks.items()}
        values |= tokenizer.names
        values |= {name: text for name, text in texts.items() if text is not None}
    if model is not None:
        values["mask_token"] = MASK
    _write_table(folder / MARKS[1], values)


def _with_mask(tokenizer: BPETokenizer | HubTokenizer, mask: int) -> str | None:
    """The file with `MASK` for the token ``mask``; None where its next token is another one."""
    package = tokenizers_package()
    inner = package.Tokenizer.from_str(tokenizer.model)
    # the space before it is the hidden token's own, as in `predict`
    mark = package.AddedToken(MASK, lstrip=tokenizer.spaced, normalized=False)
    inner.add_special_tokens([mark])
    text: str = inner.to_str()
    return text if inner.token_to_id(MASK) == mask else None


def _export_marian(tokenizer: MarianTokenizer, folder: Path, tokens: int) -> None:
    for side, name in SPM.items():
        with file_written_whole(folder / name) as path:
            path.write_bytes(tokenizer.models[side])
    _write_table(folder / PIECES, tokenizer.pieces)
    added = {str(n): {"content": text, "special": True} for text, n in tokenizer.marks.items()}
    values = {
        "tokenizer_class": "MarianTokenizer",
        "eos_token": tokenizer.end,
        "unk_token": tokenizer.unknown,
        "model_max_length": tokens,
        "added_tokens_decoder": added,
    }
    _write_table(folder / MARKS[1], values)


def exportable(tokenizer: Tokenizer | None) -> bool:
    """True if transformers has a form for a tokenizer: bytes and characters have none there."""
    return isinstance(tokenizer, BPETokenizer | HubTokenizer | MarianTokenizer)


def _write_table(path: Path, values: dict[str, Any]) -> None:
    write_text(path, to_json(values, indent=2, ensure_ascii=False) + "\n")


def _marks(folder: Path) -> dict[str, str]:
    """Special tokens by what they are for: ``eos_token``, ``mask_token`` ..."""
    result: dict[str, str] = {}
    for name in MARKS:
        for use, mark in _table(folder / name).items():
            text = mark.get("content") if isinstance(mark, dict) else mark
            if use.endswith("_token") and isinstance(text, str):
                result[use] = text
    return result


def _table(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}
