"""Encodes texts with PyPI tokenizers, one at a time, as asked on standard input.

Arguments: the tokenizer.json, then the files with the texts. Each line asked is
"cold N" or "warm N"; the answer is "CPU-seconds number-of-ids sum".
"""
import sys
import time

import tokenizers

tok = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = [open(name, encoding="utf-8", newline="").read() for name in sys.argv[2:]]
print("ready", tokenizers.__version__, flush=True)
for line in sys.stdin:
    how, number = line.split()
    text = texts[int(number)]
    if how == "cold":
        tok.model._clear_cache()
    start = time.process_time()
    ids = tok.encode(text, add_special_tokens=False).ids
    took = time.process_time() - start
    print(took, len(ids), sum(i * (n % 1000 + 1) for n, i in enumerate(ids)), flush=True)
