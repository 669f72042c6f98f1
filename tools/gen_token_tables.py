#!/usr/bin/env python3
"""Writes prompt/tokens/unicode.txt: the Unicode tables of the PyPI package tokenizers.

The engines cut and normalize text with the Unicode data compiled into that
package, which is neither Go's nor this Python's. So each table is asked from the
package itself, over all code points. Run with tokenizers 0.22.2:

    python3 tools/gen_token_tables.py > prompt/tokens/unicode.txt
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = [  # name, Oniguruma class
    ("L", r"\p{L}"), ("N", r"\p{N}"), ("M", r"\p{M}"), ("P", r"\p{P}"), ("S", r"\p{S}"),
    ("s", r"\s"), ("U", r"[\p{Lu}\p{Lt}]"), ("l", r"\p{Ll}"), ("H", r"\p{Han}"),
]


def base36(n):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while True:
        out = digits[n % 36] + out
        n //= 36
        if n == 0:
            return out


def ranges(points):
    """Gap and length of every run, in base 36."""
    out, last, points = [], 0, sorted(points)
    i = 0
    while i < len(points):
        j = i
        while j + 1 < len(points) and points[j + 1] == points[j] + 1:
            j += 1
        out.append(base36(points[i] - last) + "+" + base36(j - i + 1))
        last = points[j] + 1
        i = j + 1
    return " ".join(out)


def members(cls):
    """All code points that cls matches."""
    got = []
    for at in range(0, len(ALL), 4096):
        chunk = ALL[at : at + 4096]
        text = "".join(map(chr, chunk))
        # Removing what matches leaves the rest: the offsets tell what matched.
        rest = pre_tokenizers.Split(Regex(cls), "removed").pre_tokenize_str(text)
        keep = set()
        for _, (a, b) in rest:
            keep.update(range(a, b))
        got += [c for i, c in enumerate(chunk) if i not in keep]
    return got


def words():
    """All code points that count as part of a word for single_word tokens."""
    tok = Tokenizer(models.BPE(vocab={"Z": 0}, merges=[]))
    tok.add_tokens([AddedToken("%%", single_word=True, normalized=False)])
    mark = tok.token_to_id("%%")
    got = []
    for at in range(0, len(ALL), 128):
        chunk = [c for c in ALL[at : at + 128] if c != ord("%")]
        enc = tok.encode("".join(chr(c) + "%% " for c in chunk), add_special_tokens=False)
        seen = {a for i, (a, _) in zip(enc.ids, enc.offsets) if i == mark}
        got += [c for i, c in enumerate(chunk) if 4 * i + 1 not in seen]
    return got


def mapping(pairs):
    return " ".join(base36(c) + "=" + ",".join(base36(ord(x)) for x in s) for c, s in pairs)


def main():
    print("# Unicode as PyPI tokenizers", tokenizers.__version__, "sees it; see tools/gen_token_tables.py.")
    for name, cls in CLASSES:
        print("class", name, ranges(members(cls)))
    print("class w", ranges(words()))
    nfd, nfc, nfkd, low = normalizers.NFD(), normalizers.NFC(), normalizers.NFKD(), normalizers.Lowercase()
    hangul = range(0xAC00, 0xD7A4)
    canon, compat, lower, ccc, comp = [], [], [], {}, []
    for c in ALL:
        s = chr(c)
        if c in hangul:
            continue
        d = nfd.normalize_str(s)
        if d != s:
            canon.append((c, d))
            if len(d) > 1 and nfc.normalize_str(d) == s:
                first = unicodedata.decomposition(s).split()
                assert len(first) == 2, (hex(c), first)
                comp.append((c, chr(int(first[0], 16)) + chr(int(first[1], 16))))
        k = nfkd.normalize_str(s)
        if k != d:
            compat.append((c, k))
        w = low.normalize_str(s)
        if w != s:
            lower.append((c, w))
        cc = unicodedata.combining(s)
        # The class is used only where the package itself reorders the mark.
        if cc and (nfd.normalize_str("\u0345" + s) == s + "\u0345" or nfd.normalize_str(s + "\u0334") == "\u0334" + s):
            if len(d) == 1:
                ccc.setdefault(cc, []).append(c)
    for cc in sorted(ccc):
        print("ccc", cc, ranges(ccc[cc]))
    print("canon", mapping(canon))
    print("compose", mapping(comp))
    print("compat", mapping(compat))
    print("lower", mapping(lower))
    print("done", len(canon), len(comp), len(compat), len(lower), file=sys.stderr)


main()
