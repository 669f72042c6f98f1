#!/usr/bin/env python3
"""Writes prompt/tokens/testdata/golden: small tokenizers and the reference's ids.

Each is trained here, on generated text, to cover one pre-tokenizer, normalizer or
option; texts.json is encoded with all of them. Run in the environment that
tools/parity_tokens.py makes:

    .tools/tokens/venv/bin/python tools/gen_token_golden.py
"""
import hashlib
import json
import random
import struct
from pathlib import Path

from parity_tokens import CODE, CONTRACTIONS, EMOJI, MARKS, SPACES, fuzz, word
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent.parent / "prompt" / "tokens" / "testdata" / "golden"
PATTERNS = {}
for line in (HERE.parent.parent / "patterns.go").read_text().splitlines():
    if line.strip().startswith("pattern") and " = " in line:
        name, text = line.strip().split(" = ", 1)
        PATTERNS[name.strip()] = text[1:-1] if text[0] == "`" else json.loads(text)


def corpus(rng):
    base = ["the quick brown fox jumps over the lazy dog ", "Routing requests to workers that hold the prefix. ", "don't I'll we've it's ",
            "func (s *Store) Run(ctx context.Context) error {\n\treturn nil\n}\n", "中文分词测试，缓存前缀。", "日本語のテキスト", "привет мир ",
            "한국어 문장 ", "ñandú déjà vu naïve ", "1234567890 3.14159 ", "    \n\n\t\t  ", "AAAAAAAA aaaaaaaa ======== ", "🙂👍🏽 "]
    return ["".join(rng.choice(base) for _ in range(12)) + fuzz(rng, []) for _ in range(300)]


def split(*names, behavior="isolated", invert=False):
    parts = [pre_tokenizers.Split(Regex(PATTERNS[n]), behavior, invert) for n in names]
    return pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(lines, pre, norm=None, size=600, alphabet=None, **model):
    tok = Tokenizer(models.BPE(**model))
    if norm is not None:
        tok.normalizer = norm
    if pre is not None:
        tok.pre_tokenizer = pre
    special = [model["unk_token"]] if "unk_token" in model else []
    if model.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in range(256)]
    tok.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special, initial_alphabet=alphabet or [], limit_alphabet=120 if alphabet is None else 10000, max_token_length=12))
    if special:  # the trainer makes them added tokens, which would match text
        plain = json.loads(tok.to_str())
        plain["added_tokens"] = []
        tok = Tokenizer.from_str(json.dumps(plain))
    return tok


def chat_tokens(tok):
    tok.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tok.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False), AddedToken("<tool_call>", normalized=True)])
    return tok


def flag_tokens(tok):
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<eol>", rstrip=True), AddedToken("<both>", lstrip=True, rstrip=True)])
    tok.add_tokens([
        AddedToken("word", single_word=True, normalized=False), AddedToken("Étude", normalized=True), AddedToken("Ａb", normalized=True),
        AddedToken("a b", normalized=False), AddedToken("  ", normalized=False), AddedToken("ab", normalized=True, rstrip=True),
    ])
    return tok


def bos(tok, name="<|endoftext|>"):
    i = tok.token_to_id(name)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{name} $A {name}", pair=f"{name} $A $B", special_tokens=[(name, i)])])
    return tok


def with_traps(tok):
    """Adds tokens that no merge makes, and takes whole words as they are."""
    j = json.loads(tok.to_str())
    vocab = j["model"]["vocab"]
    for t in ["Ġpointsman", "qzx", "ä¸Ńqz", "xqz", "!?!?", "ĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠ"]:
        vocab.setdefault(t, len(vocab))
    j["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(j))


def several_pairs(tok):
    """Gives tokens more than one pair to be merged from, as Llama 3's file does, and writes merges as strings."""
    j = json.loads(tok.to_str())
    m = j["model"]
    vocab = m["vocab"]
    merges = []
    for a, b in m["merges"]:
        whole = a + b
        merges.append(f"{a} {b}")
        for k in range(1, len(whole)):
            if whole[:k] in vocab and whole[k:] in vocab and whole[:k] != a:
                merges.append(f"{whole[:k]} {whole[k:]}")
    m["merges"] = merges + merges[5:9]
    return Tokenizer.from_str(json.dumps(j))


def build(rng):
    lines = corpus(rng)
    full = pre_tokenizers.ByteLevel.alphabet()
    space = normalizers.Replace(" ", "▁")
    out = {
        "gpt2": bos(chat_tokens(train(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), alphabet=full))),
        "gpt2_prefix_space": flag_tokens(train(lines, pre_tokenizers.ByteLevel(add_prefix_space=True), alphabet=full)),
        "gpt2_nfkc_lower": flag_tokens(train(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), alphabet=full)),
        "bytes_unknown": train(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), alphabet=["a"], unk_token="?", fuse_unk=True),
        "bytes_dropped": train(lines, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), alphabet=["a"]),
        "qwen2": chat_tokens(train(lines, split("patternQwen2"), normalizers.NFC(), alphabet=full)),
        "qwen35": chat_tokens(train(lines, split("patternQwen35"), normalizers.NFC(), alphabet=full)),
        "cl100k": bos(chat_tokens(several_pairs(with_traps(train(lines, split("patternCL100K"), alphabet=full))))),
        "o200k": chat_tokens(with_traps(train(lines, split("patternO200K"), alphabet=full))),
        "o200k_removed": train(lines, split("patternO200K", behavior="removed", invert=True), alphabet=full),
        "tekken": flag_tokens(train(lines, split("patternTekken"), alphabet=full)),
        "deepseek": chat_tokens(train(lines, split("patternDeepSeekNumber", "patternDeepSeekCJK", "patternDeepSeekWord"), alphabet=full)),
        "nfd": train(lines, split("patternQwen2"), normalizers.NFD(), alphabet=full),
        "nfkd": train(lines, split("patternCL100K"), normalizers.NFKD(), alphabet=full),
        "llama2": train(lines, None, normalizers.Sequence([normalizers.Prepend("▁"), space]), size=700, byte_fallback=True, unk_token="<unk>", fuse_unk=True),
        "gemma": train(lines, pre_tokenizers.Split(" ", "merged_with_previous"), space, size=700, byte_fallback=True, unk_token="<unk>", fuse_unk=True),
        "metaspace_first": train(lines, pre_tokenizers.Metaspace(prepend_scheme="first"), size=700, byte_fallback=True, unk_token="<unk>"),
        "metaspace_always": flag_tokens(train(lines, pre_tokenizers.Metaspace(prepend_scheme="always"), size=500, unk_token="<unk>")),
        "metaspace_never": train(lines, pre_tokenizers.Metaspace(prepend_scheme="never", split=False), size=500, unk_token="<unk>", fuse_unk=True),
    }
    out["llama2"] = llama_specials(out["llama2"])
    out["metaspace_first"] = llama_specials(out["metaspace_first"])
    roberta = out["gpt2_prefix_space"]
    roberta.post_processor = processors.RobertaProcessing(sep=("<eol>", roberta.token_to_id("<eol>")), cls=("<mask>", roberta.token_to_id("<mask>")))
    return out


def llama_specials(tok):
    tok.add_special_tokens(["<s>", "</s>"])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    return tok


def texts(rng):
    special = ["<|im_start|>", "<|im_end|>", "<think>", "<tool_call>", "<mask>", "<eol>", "<both>", "word", "Étude", "E\u0301tude", "a b", "  ", "<s>", "</s>", "<unk>", "Ａb", "<0x41>"]
    fixed = ["", " ", "  ", "\n", "a", "▁", "▁ a", " ▁", "a▁b ▁▁ c",
             "<|im_start|>user\nHello, what's the word? swordwordless word<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
             "qzx\nqzx中\nqzx", "a\u0305\u0301 e\u0304\u0301\u0323 a\u0323\u0302", "x <mask> y", "x<eol> \n y", "x  <both>  <both> y", "<mask>", " <mask>", "<eol> <mask>", "étude e\u0301tude ÉTUDE", "aword word, word_word wordword (word)", "abab ab  ab\nab",
             "\U0002ebf0\u0897\u1c89\ua7cb\U00010d40 Unicode 16", "I'\u017f it'S \u212a's", "\u07fd\u0301\u0345\u0334e\u0898\u0c3c\u1abf\u1df6a\U00011935\U00011930\U00011938",
             "e" + "\u0301" * 40 + "\u1161" * 33 + "\u1100\u1161\u11a8", " pointsman qzx中qz xqz中 !?!? é!?!?", "  1  中1 中  1", "a\u200db\u200d\u0000c\u200d!", "ªABC\u0301DEf ʰHTTPServer's'S'LL x'll",
             "a/b//\r\n/ !!//\n", "foo \n \n  bar\r\n\r\n  baz   ", "\u00a0\u2003x \u3000中", "12345678 ¼½¾ ²³ 一二三", "中文。中文，中文 a b", "中文分词测试，缓存前缀。é测试，缓存前缀", "\u30fb\u30a0\u309b゛カ・タ", "\ufeffx\ufffd\ufffd\ufffd", "\U000f0000\U0010ffff\u0378",
             "a" * 300, " " * 300 + "x", "=" * 5000, "中" * 700, "ab" * 3000, "a \n" * 900]
    out = fixed + CONTRACTIONS + SPACES + EMOJI + MARKS + CODE
    while len(out) < 170:
        out.append(fuzz(rng, special) if rng.random() < 0.8 else " ".join(word(rng) for _ in range(4)))
    return out


def brief(ids):
    """Ids, or for many their number and the start of the SHA-256 of them as 32 bit little-endian words."""
    if len(ids) <= 100:
        return ids
    return f"{len(ids)} {hashlib.sha256(struct.pack(f'<{len(ids)}I', *ids)).hexdigest()[:32]}"


def parts(cases):
    """What the reference's pre-tokenizers and normalizers alone make of the texts."""
    known = {n: [n] for n in PATTERNS if "DeepSeek" not in n} | {"deepSeek": ["patternDeepSeekNumber", "patternDeepSeekCJK", "patternDeepSeekWord"]}
    words, forms = {}, {}
    for name, patterns in known.items():
        pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[n]), "isolated") for n in patterns])
        words[name] = [[w for w, _ in pre.pre_tokenize_str(t)] for t in cases]
    for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD, normalizers.Lowercase):
        forms[form.__name__] = [form().normalize_str(t) for t in cases]
    return {"texts": cases, "words": words, "forms": forms}


def main():
    rng = random.Random(5)
    cases = texts(rng)
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE.parent / "parts.json").write_text(json.dumps(parts([t for t in cases if len(t) < 60][:120]), ensure_ascii=False, separators=(",", ":")) + "\n")
    (HERE / "texts.json").write_text(json.dumps(cases, separators=(",\n", ":")) + "\n")
    for name, tok in build(rng).items():
        tok.decoder = decoders.ByteLevel()
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [[brief(tok.encode(t, add_special_tokens=s).ids) for s in (False, True)] for t in cases]
        (folder / "ids.json").write_text(json.dumps([[a, b if b != a else None] for a, b in ids], separators=(",", ":")) + "\n")


main()
