"""Edge cases that people hit, each with the value it must give or the sentence it must say."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vocab_tools import document, notes, values, variant

from dflash_convert.errors import TokenizerError
from dflash_convert.vocab import Vocabulary, load_vocabulary

ROOT = Path(__file__).resolve().parents[2]
SIZE = 340


@pytest.fixture
def base(fixtures: Path) -> Path:
    return fixtures / "tokenizers" / "bytelevel"


@pytest.fixture
def spm(fixtures: Path) -> Path:
    return fixtures / "tokenizers" / "spm-bpe"


def entry(tid: int, text: str, **flags: bool) -> dict[str, Any]:
    return {"id": tid, "content": text, "special": False, "normalized": False, **flags}


def load(base: Path, folder: Path, size: int = SIZE, *, plain: bool = False, **changes: Any) -> Vocabulary:
    return load_vocabulary(variant(base, folder, **changes), vocab_size=size, plain=plain)


def with_added(base: Path, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens": [*document(base)["added_tokens"], *entries]}


@pytest.mark.parametrize("spelling", [["<|im_end|>", "<x>"], {"image_token": "<x>"}, [{"content": "<x>"}]])
def test_extra_special_tokens_as_list_or_object(base: Path, tmp_path: Path, spelling: object) -> None:
    tokenizer = document(base)
    vocab = {**tokenizer["model"]["vocab"], "<x>": 324}
    change = {"model": {**tokenizer["model"], "vocab": vocab}}
    without = values(load(base, tmp_path / "a", tokenizer=change))
    got = values(load(base, tmp_path / "b", tokenizer=change, tokenizer_config={"extra_special_tokens": spelling}))
    assert (without["token_type"][324], got["token_type"][324]) == (1, 3)
    assert got["tokens"] == without["tokens"]


def test_added_tokens_decoder_only(base: Path, tmp_path: Path) -> None:
    decoder = {"324": {"content": "<tool>", "special": False}, "325": {"content": "<end>", "special": True}}
    got = values(load(base, tmp_path, tokenizer_config={"added_tokens_decoder": decoder}))
    assert got["tokens"][324:327] == ["<tool>", "<end>", "[PAD326]"]
    assert got["token_type"][324:327] == [4, 3, 5]


@pytest.mark.parametrize("plain", [True, False])
def test_tokens_that_only_added_tokens_json_names(base: Path, tmp_path: Path, plain: bool) -> None:
    folder = variant(base, tmp_path)
    listed = {"<late>": 324, "<|later|>": 325, document(base)["added_tokens"][0]["content"]: 0}
    (folder / "added_tokens.json").write_text(json.dumps(listed), encoding="utf-8")
    got = values(load_vocabulary(folder, vocab_size=SIZE, plain=plain))
    assert got["tokens"][324:327] == ["<late>", "<|later|>", "[PAD326]"]
    assert got["token_type"][324:327] == [4, 3, 5]


@pytest.mark.parametrize(
    ("architecture", "stated", "expected"),
    [
        ("ApertusForCausalLM", True, True),  # inherits the Llama route
        ("GraniteForCausalLM", False, False),
        ("Qwen2ForCausalLM", True, None),
        ("Gemma2ForCausalLM", True, False),
        ("Gemma3ForConditionalGeneration", None, False),
        ("InternLM3ForCausalLM", True, True),
        ("Ernie4_5ForCausalLM", None, None),
    ],
)
def test_the_space_prefix_of_a_sentencepiece_model(
    spm: Path, tmp_path: Path, architecture: str, stated: bool | None, expected: bool | None
) -> None:
    folder = variant(
        spm, tmp_path, config={"architectures": [architecture]}, tokenizer_config={"add_prefix_space": stated}
    )
    vocabulary = load_vocabulary(folder, vocab_size=SIZE, plain=True)
    found = {kv.name: kv.value for kv in vocabulary.entries}.get("tokenizer.ggml.add_space_prefix")
    assert found is expected


def test_an_empty_template_is_none(base: Path, tmp_path: Path) -> None:
    folder = variant(base, tmp_path / "empty", tokenizer_config={"chat_template": ""})
    for plain in (True, False):
        assert load_vocabulary(folder, vocab_size=SIZE, plain=plain).template_sha256 is None
    (folder / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    assert (
        load_vocabulary(folder, vocab_size=SIZE, plain=True).template_sha256 is None
    )  # the reference looks no further
    assert load_vocabulary(folder, vocab_size=SIZE).template_sha256 is not None
    null = variant(folder, tmp_path / "null", tokenizer_config={"chat_template": None})
    assert load_vocabulary(null, vocab_size=SIZE, plain=True).template_sha256 is None
    assert load_vocabulary(null, vocab_size=SIZE).template_sha256 is not None


def test_special_true_is_control_inside_the_vocabulary(base: Path, tmp_path: Path) -> None:
    got = values(load(base, tmp_path, tokenizer=with_added(base, entry(4, "Ą", special=True, normalized=True))))
    assert (got["tokens"][4], got["token_type"][3:6]) == ("Ą", [1, 3, 1])


def test_think_stays_whole(base: Path) -> None:
    got = values(load_vocabulary(base, vocab_size=SIZE))
    assert (got["tokens"][322], got["token_type"][322]) == ("<think>", 4)


def test_looks_special_is_control(base: Path) -> None:
    assert values(load_vocabulary(base, vocab_size=SIZE))["token_type"][323] == 3


def test_user_defined_tokens_are_spelled_as_in_the_text(base: Path, tmp_path: Path) -> None:
    tokenizer = with_added(base, entry(324, "▁▁"), entry(325, "Ġword"), entry(326, "Ġnorm", normalized=True))
    got = values(load(base, tmp_path, tokenizer=tokenizer))
    assert got["tokens"][324:327] == ["  ", " word", "Ġnorm"]


def test_ids_beyond_vocab_size(base: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="token id 323 does not fit the drafter's vocab_size 320") as caught:
        load_vocabulary(base, vocab_size=320)
    assert caught.value.tip is not None
    assert "target that the drafter was trained for" in caught.value.tip
    with pytest.raises(TokenizerError, match="it must be from 1 to"):
        load_vocabulary(base, vocab_size=0)


def test_padding_up_to_the_rows(base: Path) -> None:
    got = values(load_vocabulary(base, vocab_size=400))
    assert got["tokens"][324:] == [f"[PAD{i}]" for i in range(324, 400)]
    assert set(got["token_type"][324:]) == {5}
    assert len(set(got["tokens"])) == 400


def test_a_file_that_is_too_long(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_convert.vocab.files.MAX_BYTES", 1_000)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: larger than"):
        load_vocabulary(base, vocab_size=151936)


def test_two_texts_for_one_id(base: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"token id 321 is both '<\|im_end\|>' and '<other>'"):
        load(base, tmp_path, tokenizer=with_added(base, entry(321, "<other>")))


@pytest.mark.parametrize("value", [5, True, ["</s>"], {"text": "</s>"}])
def test_a_special_token_that_is_no_text(base: Path, tmp_path: Path, value: object) -> None:
    wrong = variant(base, tmp_path / "t", tokenizer_config={"eos_token": value, "sep_token": value})
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: eos_token is .*, expected a token's text"):
        load_vocabulary(wrong, vocab_size=SIZE)
    said = " ".join(
        notes(load_vocabulary(wrong, vocab_size=SIZE, plain=True), "warning")
    )  # the reference passes over it
    assert "eos_token is" in said
    assert "sep_token is" in said


@pytest.mark.parametrize("value", [5, {"default": "x"}, True])
def test_a_chat_template_that_is_no_text(base: Path, tmp_path: Path, value: object) -> None:
    wrong = variant(base, tmp_path / "t", tokenizer_config={"chat_template": value})
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: chat_template is .*, expected text or a list"):
        load_vocabulary(wrong, vocab_size=SIZE)
    load_vocabulary(wrong, vocab_size=SIZE, plain=True)


def test_two_ids_for_one_text(base: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'a' is token 97 in the vocabulary, but added as token 330"):
        load(base, tmp_path, tokenizer=with_added(base, entry(330, "a")))


def test_repeating_a_token_with_its_own_id_is_fine(base: Path, tmp_path: Path) -> None:
    got = values(load(base, tmp_path, tokenizer=with_added(base, entry(97, "a", normalized=True))))
    assert (got["tokens"][97], got["token_type"][97]) == ("a", 4)


def test_duplicate_pieces(base: Path, tmp_path: Path) -> None:
    """Two tokens that end up with one text would make llama.cpp abort: the later one is marked unused."""
    vocabulary = load(base, tmp_path, tokenizer=with_added(base, entry(324, "▁"), entry(325, " ")))
    got = values(vocabulary)
    assert got["tokens"][324:326] == [" ", "[DUP325]"]
    assert got["token_type"][324:326] == [4, 5]
    assert notes(vocabulary, "warning") == ["token 325 repeats the text ' ' of token 324; marked unused"]


def test_eos_lists(base: Path, tmp_path: Path) -> None:
    config = {"eos_token_id": [321, 322], "bos_token_id": None}
    vocabulary = load(base, tmp_path / "a", config=config)
    assert vocabulary.special == {"eos": 321, "pad": 320, "eot": 322}, "the tokenizer's eos, the other one as eot"
    assert load(base, tmp_path / "a", plain=True).special == {"eos": 321, "pad": 320}
    unnamed = load(base, tmp_path / "b", config={"eos_token_id": [322, 323]}, tokenizer_config={"eos_token": None})
    assert unnamed.special["eos"] == 322
    generation = load(base, tmp_path / "c", generation_config={"eos_token_id": [321, 320]})
    assert "eot" not in generation.special, "<|endoftext|> ends a generation in llama.cpp anyway"


def test_no_bos(base: Path) -> None:
    assert "bos_token_id" not in values(load_vocabulary(base, vocab_size=SIZE))


@pytest.mark.parametrize("value", [None, "yes", 1])
def test_add_bos_token_that_is_not_a_flag(base: Path, tmp_path: Path, value: object) -> None:
    change = {"post_processor": None}
    vocabulary = load(base, tmp_path, tokenizer=change, tokenizer_config={"add_bos_token": value})
    assert "add_bos_token" not in values(vocabulary)


def test_add_bos_from_the_post_processor_wins(base: Path, tmp_path: Path) -> None:
    first, text = {"SpecialToken": {"id": "<|endoftext|>"}}, {"Sequence": {"id": "A"}}
    post = {"type": "TemplateProcessing", "single": [first, text], "pair": [first, text, {"Sequence": {"id": "B"}}]}
    config = {"bos_token": "<|endoftext|>", "add_bos_token": False}
    vocabulary = load(base, tmp_path / "a", tokenizer={"post_processor": post}, tokenizer_config=config)
    assert values(vocabulary)["add_bos_token"] is True
    assert any("the post-processor True" in text for text in notes(vocabulary))
    unnamed = load(base, tmp_path / "b", tokenizer={"post_processor": post})
    assert unnamed.special["bos"] == 320, "the template names it"


def test_a_template_that_ends_in_another_token(base: Path, tmp_path: Path) -> None:
    text, last = {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|endoftext|>"}}
    post = {"type": "TemplateProcessing", "single": [text, last], "pair": []}
    vocabulary = load(base, tmp_path, tokenizer={"post_processor": post})
    assert vocabulary.special == {"eos": 320, "pad": 320, "eot": 321}
    assert values(vocabulary)["add_eos_token"] is True


@pytest.mark.parametrize(("kind", "value"), [("bos", 340), ("eos", 99999), ("mask", 2**32 - 1)])
def test_special_ids_outside_the_vocabulary(base: Path, tmp_path: Path, kind: str, value: int) -> None:
    config = {"eos_token": None} if kind == "eos" else {}
    with pytest.raises(
        TokenizerError, match=f"config.json: {kind}_token_id {value} lies outside the vocabulary of 340"
    ):
        load(base, tmp_path, config={f"{kind}_token_id": value}, tokenizer_config=config)


@pytest.mark.parametrize("value", [None, -1, True, "3", 4.0])
def test_unset_ids_are_left_out(base: Path, tmp_path: Path, value: object) -> None:
    vocabulary = load(base, tmp_path, config={"bos_token_id": value, "unk_token_id": 400})
    assert vocabulary.special == {"eos": 321, "pad": 320}
    assert any("unk_token_id 400 lies outside the vocabulary; left out" in t for t in notes(vocabulary, "warning"))


def test_ids_under_text_config(base: Path, tmp_path: Path) -> None:
    vocabulary = load(base, tmp_path, config={"text_config": {"bos_token_id": 322}})
    assert vocabulary.special["bos"] == 322


def test_names_that_are_only_in_the_vocabulary(base: Path, tmp_path: Path) -> None:
    changed = {"tokenizer_config": {"unk_token": "a"}}
    assert load(base, tmp_path, **changed).special["unk"] == 97
    assert "unk" not in load(base, tmp_path, plain=True, **changed).special, "the reference loses it"


def test_templates(base: Path, tmp_path: Path) -> None:
    target = variant(base, tmp_path, tokenizer_config={"chat_template": "inline"})
    (target / "chat_template.json").write_text('{"chat_template": "json"}', "utf-8")

    def template(*, plain: bool = False) -> tuple[str, list[str]]:
        vocabulary = load_vocabulary(target, vocab_size=SIZE, plain=plain)
        text = values(vocabulary)["tokenizer.chat_template"]
        assert vocabulary.template_sha256 == hashlib.sha256(text.encode()).hexdigest()
        return text, [n for n in notes(vocabulary) if "template" in n]

    assert template()[0] == "json"
    (target / "chat_template.jinja").write_text("jinja ✓", "utf-8")
    text, said = template()
    assert text == "jinja ✓"
    assert said == [
        "chat template from chat_template.jinja",
        "the chat template in chat_template.json differs from the one in chat_template.jinja, which is used",
        "the chat template in tokenizer_config.json differs from the one in chat_template.jinja, which is used",
    ]
    assert template(plain=True)[0] == "inline", "the reference prefers tokenizer_config.json"


def test_named_templates(base: Path, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}, {"name": "rag"}, 3]
    vocabulary = load(base, tmp_path, tokenizer_config={"chat_template": named})
    got = {name: value for name, value in values(vocabulary).items() if "template" in name}
    assert got == {
        "tokenizer.chat_template.tool_use": "t",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template": "d",
    }
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "think.jinja").write_text("h", "utf-8")
    (tmp_path / "chat_template.jinja").write_text("main", "utf-8")
    got = values(load_vocabulary(tmp_path, vocab_size=SIZE))
    assert (got["tokenizer.chat_template"], got["tokenizer.chat_template.think"]) == ("main", "h")


def test_a_training_tag_is_copied_with_a_warning(base: Path, tmp_path: Path) -> None:
    text = "{% generation %}x{% endgeneration %}"
    vocabulary = load(base, tmp_path, tokenizer_config={"chat_template": text})
    assert values(vocabulary)["tokenizer.chat_template"] == text
    assert any("training-only" in note for note in notes(vocabulary, "warning"))


def test_merges_as_strings_or_pairs(base: Path, tmp_path: Path) -> None:
    model = document(base)["model"]
    lines = [" ".join(pair) for pair in model["merges"]]
    old = values(load(base, tmp_path, tokenizer={"model": {**model, "merges": lines}}))
    assert old == values(load_vocabulary(base, vocab_size=SIZE))


def test_spaces_in_merge_pairs(base: Path, tmp_path: Path) -> None:
    model = document(base)["model"]
    vocab = {**model["vocab"], " b": 324, "a b": 325}
    merges = [*model["merges"], ["a", " b"]]
    got = values(load(base, tmp_path, tokenizer={"model": {**model, "vocab": vocab, "merges": merges}}))
    assert got["merges"][-1] == "a Ġb"


PAIR = ["a", "b"]


@pytest.mark.parametrize(
    "merges",
    [None, [], ["a"], ["a b c"], [["a"]], [3], [["a", 3]], {"a": "b"}, [PAIR, {"x": 1, "y": 2}], [PAIR, "cd"]],
)
def test_bad_merges(base: Path, tmp_path: Path, merges: object) -> None:
    model = {**document(base)["model"], "merges": merges}
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: model\.merges"):
        load_vocabulary(variant(base, tmp_path, tokenizer={"model": model}), vocab_size=SIZE, pre="qwen2")


@pytest.mark.parametrize("vocab", [None, {}, ["a"], {"a": -1}, {"a": "0"}, {"a": 1.5}, {"a": True}])
def test_bad_vocabularies(base: Path, tmp_path: Path, vocab: object) -> None:
    model = {**document(base)["model"], "vocab": vocab}
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: (model\.vocab|token)"):
        load_vocabulary(variant(base, tmp_path, tokenizer={"model": model}), vocab_size=SIZE, pre="qwen2")


@pytest.mark.parametrize("bad", [{"id": 5}, {"content": "x"}, {"id": -2, "content": "x"}, "x", None])
def test_bad_added_tokens(base: Path, tmp_path: Path, bad: object) -> None:
    target = variant(base, tmp_path, tokenizer={"added_tokens": [bad]})
    with pytest.raises(TokenizerError, match="an added token without a text or a valid id"):
        load_vocabulary(target, vocab_size=SIZE, pre="qwen2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "a JSON object was expected, found list"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\xff", "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "the field model is missing"),
        (b'{"model": 3}', "the field model is missing"),
        (b'{"model": {"type": "WordPiece"}}', "a WordPiece tokenizer"),
        (b'{"model": {"type": "BPE"}, "added_tokens": {}}', "the field added_tokens is a dict"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "a Git LFS pointer"),
    ],
)
def test_broken_tokenizer_json(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(TokenizerError, match=message) as caught:
        load_vocabulary(tmp_path, vocab_size=SIZE)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_a_byte_order_mark_is_no_harm(base: Path, tmp_path: Path) -> None:
    target = variant(base, tmp_path)
    (target / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + (base / "tokenizer.json").read_bytes())
    assert load_vocabulary(target, vocab_size=SIZE).pre == "qwen2"


def test_no_tokenizer_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TokenizerError) as caught:
        load_vocabulary(tmp_path, vocab_size=SIZE)
    text = str(caught.value)
    assert "found config.json, model.safetensors, expected one of tokenizer.json, tokenizer.model, tekken.json" in text
    assert caught.value.exit_code == 3
    with pytest.raises(TokenizerError, match="does not exist"):
        load_vocabulary(tmp_path / "nowhere", vocab_size=SIZE)


def test_damaged_sentencepiece(tmp_path: Path) -> None:
    for data in (b"\n\x05abcde", b"GGUF....", b""):
        (tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(TokenizerError, match=r"tokenizer\.model: not a SentencePiece model"):
            load_vocabulary(tmp_path, vocab_size=SIZE)


def test_sentencepiece_tokens_outside(spm: Path, tmp_path: Path) -> None:
    vocabulary = load(spm, tmp_path, size=300)
    assert vocabulary.size == 300
    warned = notes(vocabulary, "warning")
    assert "tokenizer.model holds 380 pieces, the vocabulary 300; the rest is left out" in warned
    assert any("token 380 ('<|mask|>') lies outside" in text for text in warned)


def test_added_tokens_json_that_renames_a_piece(spm: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"added_tokens\.json: token 300 is '.*' in tokenizer\.model, not '<new>'"):
        load(spm, tmp_path, size=384, added_tokens={"<new>": 300})


def test_files_and_their_hashes(base: Path) -> None:
    found = load_vocabulary(base, vocab_size=SIZE).files
    assert sorted(found) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert found["tokenizer.json"] == hashlib.sha256((base / "tokenizer.json").read_bytes()).hexdigest()


LOCALE = """
import sys
from pathlib import Path
from dflash_convert.vocab import load_vocabulary
from hashlib import sha256
for kv in load_vocabulary(Path(sys.argv[1]), vocab_size=340).keys(None):
    print(kv.name, sha256(repr(list(kv.value) if kv.item else kv.value).encode()).hexdigest())
"""


def test_a_locale_without_utf8(base: Path, tmp_path: Path) -> None:
    target = variant(base, tmp_path)
    (target / "chat_template.jinja").write_text("Größe 你好", "utf-8")
    outputs = []
    for settings in ({"PYTHONUTF8": "1"}, {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}):
        env = {**os.environ, **settings}
        command = [sys.executable, "-c", LOCALE, str(target)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert "tokenizer.chat_template" in outputs[0]


def test_stand_in_models_are_checked(spm: Path, tmp_path: Path) -> None:
    model = spm / "tokenizer.model"
    target = variant(spm, tmp_path)
    (target / "tokenizer.model").unlink()
    assert values(load_vocabulary(target, vocab_size=384, tokenizer_model=model)) == values(
        load_vocabulary(spm, vocab_size=384)
    )
    assert not (target / "tokenizer.model").exists()
    with pytest.raises(TokenizerError, match="380 pieces, but the vocabulary has 1000 tokens"):
        load_vocabulary(target, vocab_size=1000, tokenizer_model=model)
    config = json.loads((target / "tokenizer_config.json").read_text("utf-8"))
    config["added_tokens_decoder"]["2"] = {"content": "<other>", "special": True}
    (target / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(TokenizerError, match="piece 2 is '</s>', but the target's token 2 is '<other>'"):
        load_vocabulary(target, vocab_size=384, tokenizer_model=model)
