"""Which tokens end a sentence, by the tokenizer of the data."""

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.masking import ends_of, with_sentences
from everyformer.data.tokenizers.package import BPETokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.models.build import configure

TEXT = "One. Two! Three?\nFour. One. Two! Three?\nFour. One. Two. "


def texts_of(tokenizer):
    return {tokenizer.decode([token]) for token in ends_of(tokenizer)}


def test_ends_are_the_tokens_whose_text_ends_a_sentence():
    assert ends_of(ByteTokenizer()) == (0, 10, 33, 46, 63)
    assert texts_of(CharTokenizer.fit([TEXT])) == {".", "!", "?", "\n"}
    assert texts_of(BPETokenizer.fit([TEXT], 300)) == {"\0", ".", "!", "?", "\n"}


def test_a_run_tells_its_model_what_its_data_knows(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    source = DataConfig(source=str(tmp_path / "text.txt"), length=16, cache=str(tmp_path / "cache"))
    data = load_dataset(source, "mlm")
    sentences = {"per": "sentence", "cpc": 0.25}
    config = configure("etc", "mlm", vocabulary=data.vocabulary, summaries=sentences)
    result = with_sentences(config, data).summaries
    assert (result.ends, result.mask_token) == ((0, 10, 33, 46, 63), 256)
    given = configure("etc", "mlm", summaries={**sentences, "ends": (7,), "mask_token": 3})
    assert with_sentences(given, data) == given
    plain = configure("bert", "mlm")
    assert with_sentences(plain, data) == plain
