"""Plant each kind of fault in a small README and require check_docs to name it."""
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).parent.parent / "check_docs"
FILES = {
    "server/options.c": '/* */\n    { "port", OPT_COUNT, 0 },\n    { "cache", OPT_BOOL, 0 },\n',
    "tests/bench/pool_bench.c": '/* */\nint main(void) { return !"--rounds"; }\n',
    "kvpool/kvpool.h": "/* */\nint kvpool_open(void);\n",
}
SOUND = """Give `--port` or `--no-cache`; `quired --port 1`; `kvpool.h` has `kvpool_open()`.

`pool_bench --rounds 3`, or alone `--rounds`; `kvpool/kvpool.h`.

```
--no-such-flag in a transcript is not looked at
```
"""
FAULTS = {
    "Give `--ports`.\n": "no flag --ports",
    "Give `--rounds`.\n": "no flag --rounds",
    "`quired --rounds 3`.\n": "quired has no flag --rounds",
    "`pool_bench --port 3`.\n": "pool_bench has no flag --port",
    "See `blocks.c`.\n": "blocks.c is not there",
    "See `kvpool/blocks.h`.\n": "kvpool/blocks.h is not there",
    "Call `kvpool_shut()`.\n": "kvpool_shut() does not occur",
}


def run(root):
    done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
    return done.returncode, done.stdout


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    readme = root / "kvpool/README.md"
    readme.write_text(SOUND)
    code, out = run(root)
    assert code == 0 and out == "0 findings\n", out
    for text, expected in FAULTS.items():
        readme.write_text(SOUND + "\n" + text)
        code, out = run(root)
        assert code == 1 and expected in out and "kvpool/README.md" in out, (text, out)
print("all kinds of fault found")
