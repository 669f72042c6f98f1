#!/usr/bin/env python3
"""Compares the tokenizers and the chat templates with their references.

    python3 tools/parity.py [--seed N] [--quick]

Runs tools/parity_tokens.py and tools/parity_templates.py, which say what they do,
and joins what they found into one JSON object, the last line. The exit code is 1
when anything differs. It takes minutes; --quick takes one.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
QUICK = {"parity_tokens.py": ["--texts", "600", "--fuzz", "2000", "--no-sweep"], "parity_templates.py": ["--conversations", "500", "--small", "20", "--random", "500"]}


def run(script, args):
    """Runs one half; returns its report."""
    flags = ["--seed", str(args.seed)] + (QUICK[script] if args.quick else [])
    out = subprocess.run([sys.executable, TOOLS / script, *flags], stdout=subprocess.PIPE, text=True, check=False)
    lines = out.stdout.strip().splitlines()
    if out.returncode not in (0, 1) or not lines or not lines[-1].startswith("{"):
        sys.exit(f"{script} ended with {out.returncode} and without a report")
    print(lines[-1], file=sys.stderr)
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    tokens = run("parity_tokens.py", args)
    templates = run("parity_templates.py", args)
    total = {
        "models": tokens["models"], "texts": tokens["texts"], "code_points": tokens["code_points"],
        "templates": templates["templates"], "conversations": templates["conversations"], "renderings": templates["renderings"],
        "failing": templates["failing"], "seed": args.seed, "mismatches": tokens["mismatches"] + templates["mismatches"],
    }
    print(json.dumps(total))
    sys.exit(total["mismatches"] > 0)


if __name__ == "__main__":
    main()
