"""`convert`: checkpoints of transformers come in and go out, and the other verbs take them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Refused, Say, Train
from foreign import CLASSES, checkpoint, logits, transformers
from safetensors.torch import load_file, save_file

import everyformer as ef
from everyformer.cli.trained import open_run
from everyformer.data.tokenizers.load import fit_tokenizer, load_tokenizer
from everyformer.data.tokenizers.package import HubTokenizer
from everyformer.lab.convert import import_checkpoint
from everyformer.tasks.prediction.predictor import Predictor

TUNE = ("train", "--from", "ours", "--data", "text.txt", "--steps", "1", "--batch", "2")


@pytest.mark.parametrize("kind", CLASSES)
def test_a_checkpoint_becomes_a_saved_model_with_the_same_logits(kind, say, tree):
    theirs = checkpoint(kind, tree / "theirs", beyond=3)
    code, out, err = say("convert", "theirs", "--out", "ours")
    assert code == 0, err
    assert f"a checkpoint of transformers ({kind})" in out
    assert " taken, 0 made, 0 left" in out
    assert "taken: stack.blocks.*.mixer_norm.weight x 2" in out
    assert "and 3 of the model stand for no text" in out
    ours = ef.load("ours")
    ids = torch.randint(3, ours.config.vocabulary, (2, 13))
    torch.testing.assert_close(logits(ours, ids), logits(theirs, ids), rtol=0, atol=1e-5)
    reads_as_theirs(load_tokenizer("ours"), kind, ours.config.vocabulary)
    code, out, _ = say("convert", "theirs", "--out", "again", "--json")
    found = json.loads(out)
    assert (found["to"], found["tokenizer"]) == ("ours", "hub")
    # a tied matrix has two names and is taken once
    tied = {"head.weight"} if ours.config.tie else set()
    assert {*found["read"]["taken"]} == {*ours.state_dict()} - tied
    assert (found["read"]["made"], found["read"]["left"]) == ([], [])
    code, out, err = say("convert", "ours", "--to", "hf", "--type", kind, "--out", "back")
    assert code == 0, err
    assert "tensors written: " in out
    again = type(theirs).from_pretrained("back").eval()
    torch.testing.assert_close(logits(again, ids), logits(theirs, ids), rtol=0, atol=1e-5)
    read = transformers.AutoTokenizer.from_pretrained("back")
    text = "a warm fox"
    assert read(text, add_special_tokens=False)["input_ids"] == load_tokenizer("ours").encode(text)
    if kind == "llama":
        # its options have options: what a file leaves out of them is what the flags say
        code, _, err = say(*TUNE, "--length", "16", "--out", "tuned", "--training.threads", "1")
        assert code == 0, err
        assert "from ours: 0 fresh" in err


def reads_as_theirs(ours: Any, kind: str, vocabulary: int) -> None:
    assert isinstance(ours, HubTokenizer)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file="theirs/tokenizer.json")
    text = "a warm fox sleep."
    plain = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text) == plain
    assert ours.encode_alone(text).tolist() == theirs(text)["input_ids"]
    assert ours.decode(plain) == text
    assert ours.decode_after(plain[:2], plain[2:]) == text[len(ours.decode(plain[:2])) :]
    ends = {"gpt2": (0, None), "llama": (2, None), "bert": (3, 4)}
    assert (ours.separator, ours.mask) == ends[kind]
    assert ours.encode(f"{text}\0{text}") == [*plain, ours.separator, *plain]
    assert ours.vocabulary == vocabulary
    assert load_tokenizer(ours.to_dict()) == ours


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_converted_model_generates_what_theirs_does(kind: str, say: Say, tree: Path) -> None:
    theirs = checkpoint(kind, tree / "theirs")
    assert say("convert", "theirs", "--out", "ours")[0] == 0
    prompt = "the quick brown"
    code, out, err = say(
        "generate", "ours", "--prompt", prompt, "--temperature", "0", "--tokens", "9"
    )
    assert code == 0, err
    read = transformers.PreTrainedTokenizerFast(tokenizer_file="theirs/tokenizer.json")
    ids = read(prompt, return_tensors="pt")["input_ids"]
    for _ in range(9):
        ids = torch.cat((ids, logits(theirs, ids)[:, -1:].argmax(-1)), 1)
    opening = read.decode(ids[0, :1]) if kind == "llama" else ""
    assert out == read.decode(ids[0]).removeprefix(opening).lstrip(" ") + "\n"
    code, out, _ = say("generate", "ours", "--prompt", prompt, "--prompt", "a", "--tokens", "2")
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == [prompt, "a"]


@pytest.mark.full("seconds each", parts=3)
def test_the_other_verbs_take_a_converted_model(say: Say, refused: Refused, tree: Path) -> None:
    checkpoint("gpt2", tree / "theirs", beyond=1)
    assert say("convert", "theirs", "--out", "ours")[0] == 0
    told = refused("eval", "ours")
    assert "which does not know its data: say what to measure it on with --data" in told
    code, out, err = say("eval", "ours", "--data", "text.txt", "--sequences", "3", "--json")
    assert code == 0, err
    data = json.loads(out)["data"]
    assert (data["tokenizer"], data["length"]) == ("hub", 40)
    code, out, err = say("show", "ours", "weights", "--text", "a fox")
    assert code == 0, err
    assert Path("ours/pictures").is_dir()
    tune = ("train", "--from", "ours", "--data", "text.txt", "--steps", "2", "--batch", "2")
    code, _, err = say(*tune, "--length", "16", "--out", "tuned", "--training.threads", "1")
    assert code == 0, err
    assert "from ours: 0 fresh" in err
    saved = json.loads(Path("tuned/config.json").read_text())
    assert saved["tokenizer"]["kind"] == saved["run"]["data"]["tokenizer"] == "hub"
    assert say("eval", "tuned", "--sequences", "2")[0] == 0
    assert say("train", "--resume", "--out", "tuned", "--steps", "3")[0] == 0
    told = refused("train", "gpt", "--data", "text.txt", "--tokenizer", "hub", "--out", "x")
    assert "cannot be learned: start from that model (--from)" in told


def test_a_folder_that_transformers_splits_by_its_own_rules_is_told(say: Say, tree: Path) -> None:
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 24, "max_position_embeddings": 40, "num_key_value_heads": 2,
    }  # fmt: skip
    tokenizer = fit_tokenizer("bpe:300", ["12 warm foxes, 345 trees "] * 9)
    config = transformers.Qwen2Config(**sizes, vocab_size=tokenizer.vocabulary)
    transformers.Qwen2ForCausalLM(config).save_pretrained("theirs")
    ours = import_checkpoint("theirs").model
    ef.save(ours, "ours", tokenizer=tokenizer)
    code, out, err = say("convert", "ours", "--to", "hf", "--out", "back")
    assert code == 0, err
    assert "PreTrainedTokenizerFast reads it as it is written" in out
    text = "12 warm foxes, 345 trees"
    read = transformers.PreTrainedTokenizerFast.from_pretrained("back")
    assert read(text)["input_ids"] == tokenizer.encode(text)
    assert say("convert", "ours", "--to", "hf-model", "--out", "wrapped")[0] == 0
    assert json.loads(Path("wrapped/generation_config.json").read_text())["eos_token_id"] == (
        tokenizer.separator
    )


def test_a_masked_model_keeps_its_mask_and_becomes_a_classifier(say: Say, tree: Path) -> None:
    checkpoint("bert", tree / "theirs")
    assert say("convert", "theirs", "--out", "ours")[0] == 0
    assert say("convert", "ours", "--to", "hf", "--out", "again")[0] == 0
    read = transformers.AutoTokenizer.from_pretrained("again")
    uses = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(read, f"{use}_token") for use in uses] == [f"[{u.upper()}]" for u in uses]
    [short, long] = read(["the", "the warm fox"], padding=True)["attention_mask"]
    assert sum(short) < sum(long) == len(short)
    code, out, err = say("eval", "ours", "--data", "text.txt", "--length", "16", "--json")
    assert code == 0, err
    assert json.loads(out)["data"]["vocabulary"] == ef.load("ours").config.vocabulary
    rows = [f"a warm fox and the quick brown tree,{n % 2}" for n in range(12)]
    Path("labels.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    tune = ("train", "--from", "ours", "--data", "labels.csv", "--steps", "1", "--batch", "2")
    code, _, err = say(*tune, "--length", "5", "--model.pooling", "first", "--out", "tuned")
    assert code == 0, err
    assert "from ours: 2 fresh: pool.head.weight, pool.head.bias" in err
    run = open_run("tuned")
    batch = next(iter(run.dataset(run.data).validation_batches(2)))
    # cut to 5 tokens, a text still has its marks
    assert batch.inputs[:, 0].tolist() == [2, 2]
    assert batch.inputs[:, -1].tolist() == [3, 3]


def test_another_mixer_is_fresh_and_is_trained_on(say: Say, tree: Path) -> None:
    checkpoint("gpt2", tree / "theirs")
    code, out, err = say("convert", "theirs", "--out", "ours", "--mixer", "aft-conv")
    assert code == 0, err
    assert "tensors of the mixer aft-conv have learned nothing yet" in out
    assert "everyformer train --from ours" in out
    assert "made (fresh): stack.blocks.*.mixer.kernel" in out
    assert "left: transformer.h.*.attn.c_attn.weight x 2" in out
    code, _, err = say(*TUNE, "--length", "16", "--out", "tuned")
    assert code == 0, err
    model = json.loads(Path("tuned/config.json").read_text())["model"]
    assert (model["member"], model["mixer"]["name"]) == ("gpt", "aft-conv")
    code, _, err = say("train", "--resume", "--out", "tuned", "--steps", "2")
    assert code == 0, err


def test_a_run_goes_out_with_its_tokenizer(say: Say, trained: Train, refused: Refused) -> None:
    run = str(trained("gpt", "--tokenizer", "bpe:270", "--training.checkpoint-every", "1"))
    told = refused("convert", run, "--out", "out")
    assert "say what --to make of it: ours (" in told
    code, _, err = say("convert", run, "--to", "hf", "--out", "out", "--average", "2")
    assert code == 0, err
    ids = torch.randint(0, 260, (1, 11))
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out").eval()
    averaged = ef.load(run, average=2)
    torch.testing.assert_close(logits(theirs, ids), logits(averaged, ids), rtol=0, atol=1e-5)
    read = transformers.AutoTokenizer.from_pretrained("out")
    own = load_tokenizer(json.loads(Path(run, "config.json").read_text())["tokenizer"])
    assert read("the warm Ā fox")["input_ids"] == own.encode("the warm Ā fox")
    told = refused("convert", run, "--to", "ours", "--mixer", "aft-conv", "--out", "x")
    assert "train MEMBER --from" in told
    assert say("convert", run, "--to", "ours", "--out", "saved")[0] == 0
    assert load_tokenizer("saved") == own
    assert say("generate", "saved", "--prompt", "the ", "--tokens", "2")[0] == 0


@pytest.mark.parametrize("spaced", [False, True])
def test_a_masked_model_goes_out_with_its_mask(spaced, say, trained, tree):
    if not spaced:
        (tree / "text.txt").write_text("ab\n" * 2000)
    run, text = str(trained("bert", "--task", "mlm", "--tokenizer", "bpe:270")), "the [MASK] fox."
    assert say("convert", run, "--to", "hf", "--out", "out")[0] == 0
    assert say("convert", "out", "--out", "back")[0] == 0
    assert load_tokenizer("back").spaced == spaced
    read = transformers.AutoTokenizer.from_pretrained("out")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained("out").eval()
    ids = read(text, return_tensors="pt")["input_ids"]
    mask = ef.load(run).config.vocabulary - 1
    assert (read.mask_token, read.mask_token_id) == ("[MASK]", mask)
    [place] = (ids[0] == mask).nonzero()[:, 0].tolist()
    p = logits(theirs, ids)[0, place, :mask].softmax(-1)
    for where in (run, "back"):
        [candidates] = ef.predict(where, [text], top=mask, device="cpu")[0].masks
        ours = torch.tensor([one.probability for one in candidates])
        torch.testing.assert_close(ours, p[[one.id for one in candidates]], rtol=1e-4, atol=1e-6)


def test_our_own_class_for_transformers_goes_and_comes(say, trained, refused, tree):
    run = str(trained("aft-conv", "--tokenizer", "chars"))
    code, out, err = say("convert", run, "--to", "hf-model", "--out", "wrapped")
    assert code == 0, err
    assert "left out: transformers has no form for it" in out
    assert not Path("wrapped/tokenizer.json").exists()
    assert say("convert", "wrapped", "--out", "back")[0] == 0
    ids = torch.randint(0, 9, (1, 7))
    assert torch.equal(logits(ef.load("back"), ids), logits(ef.load(run), ids))
    assert "saved without a tokenizer" in refused("generate", "back")
    tensors = load_file("wrapped/model.safetensors")
    tensors.pop(next(name for name in tensors if "kernel" in name))
    save_file(tensors, "wrapped/model.safetensors", metadata={"format": "pt"})
    assert "the checkpoint lacks" in refused("convert", "wrapped", "--out", "cut")
    masked = ef.create_model("bert", "mlm", width=8, heads=2, layers=1, max_length=8)
    ef.save(masked, tree / "masked")
    assert "not task 'mlm'" in refused("convert", "masked", "--to", "hf-model", "--out", "x")


def test_a_run_goes_to_llama_with_its_tokenizer(say, trained, refused, tree):
    gguf = pytest.importorskip("gguf")
    run = str(trained("gpt", "--tokenizer", "bpe:270"))
    code, out, err = say("convert", run, "--to", "gguf", "--out", "gpt.gguf", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["to"], told["tokenizer"], told["note"]) == ("gguf", "bpe", "bpe:270 (270 tokens)")
    assert "blk.0.attn_qkv.weight" in told["written"]["taken"]
    texts = gguf.GGUFReader("gpt.gguf").fields["tokenizer.ggml.tokens"].contents()
    own = load_tokenizer(json.loads(Path(run, "config.json").read_text())["tokenizer"])
    assert [texts[i] for i in own.encode("a\x00 ")] == ["a", "Ā", "Ġ"]
    told = refused("convert", run, "--to", "gguf", "--out", "gpt.gguf")
    assert "exists and is not replaced" in told
    assert "must end in '.gguf'" in refused("convert", run, "--to", "gguf", "--out", "gpt.bin")
    told = refused("convert", run, "--to", "gguf", "--type", "gpt2", "--out", "x.gguf")
    assert "--type is for --to hf, not gguf" in told
    other = str(trained("aft-conv", "--tokenizer", "chars"))
    told = refused("convert", other, "--to", "gguf", "--out", "x.gguf")
    assert "this aft-conv cannot be written as gpt2, llama or qwen2" in told
    assert not Path("x.gguf").exists()


def test_what_llama_would_read_otherwise_is_left_out(say: Say, tree: Path) -> None:
    pytest.importorskip("gguf")
    checkpoint("llama", tree / "theirs")
    code, out, err = say("convert", "theirs", "--to", "gguf", "--out", "made/llama.gguf")
    assert code == 0, err
    assert "left out: llama.cpp would read texts otherwise" in out
    assert "taken: blk.*.attn_q.weight x 2" in out
    assert [path.name for path in Path("made").iterdir()] == ["llama.gguf"]


@pytest.mark.full("a quarter of a minute", parts=3)
def test_programs_are_compared_with_the_model(say: Say, refused: Refused, tree: Path) -> None:
    theirs = checkpoint("gpt2", tree / "theirs", vocab_size=11, n_layer=1, tokens=False)
    code, out, err = say("convert", "theirs", "--to", "program", "--out", "made/gpt.pt2", "--json")
    assert code == 0, err
    assert json.loads(out)["difference"] < 1e-5
    assert json.loads(out)["read"]["made"] == []
    assert [path.name for path in Path("made").iterdir()] == ["gpt.pt2"]
    told = refused("convert", "theirs", "--to", "program", "--out", "made/gpt.pt2")
    assert "exists and is not replaced" in told
    assert "must end in '.onnx'" in refused("convert", "theirs", "--to", "onnx", "--out", "x.pt2")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs.to(torch.bfloat16).save_pretrained(tree / "theirs")
    code, out, err = say("convert", "theirs", "--to", "onnx", "--out", "gpt.onnx")
    assert code == 0, err
    assert "difference" in out
    assert "float32, from bfloat16" in out
    session = onnxruntime.InferenceSession("gpt.onnx", providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["tokens", "padding_mask"]


def test_a_name_on_the_hub_is_downloaded(say, tree, monkeypatch):
    checkpoint("gpt2", tree / "theirs")
    download = {"owner/model": str(tree / "theirs")}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: download[name])
    assert say("convert", "owner/model", "--out", "ours")[0] == 0


def test_a_folder_of_timm_is_recognised(say: Say, refused: Refused, tree: Path) -> None:
    model = ef.create_model(
        "gmlp", "classify-image", width=8, layers=1, heads=1, image=(3, 8, 8), patch=4, classes=5,
        mlp_ratio=4, norm_eps=1e-6,
    ).eval()  # fmt: skip
    names = {
        "patches": "stem.proj", "stack.norm": "norm", "pool.head": "head",
        "stack.blocks.0.mixer_norm": "blocks.0.norm",
        "stack.blocks.0.mixer.up": "blocks.0.mlp_channels.fc1",
        "stack.blocks.0.mixer.norm": "blocks.0.mlp_channels.gate.norm",
        "stack.blocks.0.mixer.out": "blocks.0.mlp_channels.fc2",
    }  # fmt: skip
    held = model.state_dict()
    parts = ("weight", "bias")
    tensors = {f"{b}.{p}": held[f"{a}.{p}"] for a, b in names.items() for p in parts}
    gate, mixer = "blocks.0.mlp_channels.gate.proj", "stack.blocks.0.mixer"
    tensors |= {f"{gate}.weight": held[f"{mixer}.spatial"][0]}
    tensors |= {f"{gate}.bias": held[f"{mixer}.bias"][0]}
    Path("timm").mkdir()
    save_file({name: value.clone() for name, value in tensors.items()}, "timm/model.safetensors")
    Path("timm/config.json").write_text('{"architecture": "gmlp_tiny"}', encoding="utf-8")
    code, out, err = say("convert", "timm", "--out", "ours")
    assert code == 0, err
    assert "a checkpoint of timm (gmlp_tiny)" in out
    assert "tokenizer" not in out
    pixels = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(logits(ef.load("ours"), pixels), logits(model, pixels))
    told = refused("convert", "timm", "--out", "other", "--mixer", "aft-full")
    assert "--mixer is for attention of checkpoints of transformers" in told


def test_a_tokenizer_is_saved_only_with_a_model_that_has_its_tokens(tree: Path) -> None:
    model = ef.create_model("gpt", width=8, layers=1, heads=1, vocabulary=200)
    with pytest.raises(ef.EveryformerError, match=r"bytes \(256 tokens\).*which has 200"):
        ef.save(model, tree / "model", tokenizer=load_tokenizer({"kind": "bytes"}))
    assert not (tree / "model").exists()


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("longformer", ("--window", "16")), ("bigbird", ("--block-size", "16")), ("etc", ())],
)
def test_a_bert_is_made_longer(kind: str, chosen: tuple[str, ...], say: Say, tree: Path) -> None:
    theirs = checkpoint("bert", tree / "theirs")
    words = ("convert", "theirs", "--to", kind, "--length", "100", *chosen, "--out", "long")
    code, out, err = say(*words)
    assert code == 0, err
    ours = ef.load("long")
    assert (ours.config.genes["mixer"].name, ours.config.max_length) == (kind, 100)
    ids = torch.randint(5, 60, (2, 9))
    if kind == "etc":
        # its global tokens have learned nothing yet
        assert "everyformer train --from long" in out
        assert logits(ours, ids).shape == logits(theirs, ids).shape
    else:
        torch.testing.assert_close(logits(ours, ids), logits(theirs, ids), rtol=0, atol=1e-5)
    assert isinstance(load_tokenizer("long"), HubTokenizer)
    tune = ("train", "--from", "long", "--data", "text.txt", "--steps", "1", "--batch", "2")
    code, _, err = say(*tune, "--length", "16", "--out", "tuned")
    assert code == 0, err
    assert json.loads(Path("tuned/config.json").read_text())["model"]["task"] == "mlm"
    assert "from long: 0 fresh" in err
    # an ETC reads both ways alone
    code = say(*tune, "--length", "16", "--task", "lm", "--out", "lm")[0]
    assert code == (2 if kind == "etc" else 0)


def test_a_saved_classifier_keeps_the_names_of_its_classes(say, refused, tree):
    for name, classes in (("rated.csv", "xy"), ("other.csv", "vw")):
        rows = [f"a tree {n},{classes[n % 2]}" for n in range(40)]
        (tree / name).write_text("\n".join(["text,label", *rows, ""]))
    sizes = ("--width", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--length", "16")
    columns = ("--data.text-column", "text", "--data.label-column", "label")
    made = say("train", "gmlp", "--data", "rated.csv", *columns, *sizes, "--steps", "1",
               "--out", "run")  # fmt: skip
    assert made[0] == 0
    assert say("convert", "run", "--to", "ours", "--out", "saved")[0] == 0
    answers = [
        json.loads(say("predict", folder, "a tree 3", "--json")[1])["predictions"]
        for folder in ("run", "saved")
    ]
    assert answers[0] == answers[1]
    whole = ("--data.validation", "1", "--json")
    found = [
        json.loads(say("eval", folder, "--data", "rated.csv", *whole)[1])["evaluation"]["accuracy"]
        for folder in ("run", "saved")
    ]
    assert found[0] == found[1]
    told = refused("eval", "saved", "--data", "other.csv", *whole)
    assert "has the labels v and w, but the model knows x and y alone" in told
    ef.save(ef.load("saved"), "again", classes=("no", "yes"))
    assert Predictor.load("again").classes == ("no", "yes")


@pytest.mark.full("5 s: a store is filled, and a model converted")
def test_a_store_that_does_not_come_along_is_told(say: Say, trained: Train) -> None:
    run = str(trained("knn-lm"))
    for form, out in (("ours", "saved"), ("onnx", "lm.onnx")):
        code, told, err = say("convert", run, "--to", form, "--out", out)
        assert code == 0, err
        assert "left out, so that nothing is looked up in what the run has stored" in told
    assert "left out" not in say("convert", str(trained("gmlp")), "--to", "ours", "--out", "g")[1]
