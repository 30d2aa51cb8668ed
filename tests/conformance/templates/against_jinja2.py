#!/usr/bin/env python3
"""Compare the template interpreter with Jinja2 on real and own templates.

  against_jinja2.py RUNNER WORKDIR TEMPLATES...

RUNNER is template_conformance.  Each of TEMPLATES is a folder of NAME.jinja or
the TypeScript source of npm's @huggingface/ollama-utils that lists templates.
Every template is rendered by Jinja2 for every conversation of conversations.json
in the environment that chat templates are written for; the results are written
to WORKDIR in the runner's format and the runner judges.  Exit status 77: Jinja2
or the templates are not here.
"""
import ast
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    print("skipped: python3-jinja2 is not installed")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 11, 29, 12)


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks assistant text for training; no effect on it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def templates(source):
    path = pathlib.Path(source)
    if path.is_dir():
        for file in sorted(path.glob("*.jinja")):
            yield file.stem, file.read_text(encoding="utf-8")
    elif path.exists():
        literal = re.compile(r"""\bgguf:\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
        for i, text in enumerate(literal.findall(path.read_text(encoding="utf-8"))):
            yield f"published-{i:03}", ast.literal_eval(text)
    else:
        print(f"skipped: no {path.name} here")
        sys.exit(77)


def render(env, text, conversation, everything):
    tools = conversation.get("tools")
    variables = {k: v for k, v in conversation.items()
                 if k not in ("messages", "tools", "documents", "add_generation_prompt")}
    try:
        return {"text": env.from_string(text).render(
            messages=conversation["messages"], tools=tools,
            documents=conversation.get("documents"), bos_token="<s>", eos_token="</s>",
            date_string=everything["date_string"],
            add_generation_prompt=conversation.get("add_generation_prompt", True), **variables)}
    except Exception as error:  # whatever it raises, the runner must raise too
        return {"error": str(error)}


def main():
    runner, work, *sources = sys.argv[1:]
    everything = json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
    out = pathlib.Path(work)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(HERE / "conversations.json", out)
    env = environment()
    count = 0
    for source in sources:
        for name, text in templates(source):
            rows = {key: render(env, text, conversation, everything)
                    for key, conversation in everything["conversations"].items()}
            (out / f"{name}.jinja").write_text(text, encoding="utf-8")
            (out / f"{name}.json").write_text(json.dumps(
                {"template": name, "bos_token": "<s>", "eos_token": "</s>", "rows": rows}),
                encoding="utf-8")
            count += 1
    print(f"{count} templates, Jinja2 {jinja2.__version__}", flush=True)
    sys.exit(subprocess.run([runner, str(out)], check=False).returncode)


main()
