"""Plant each kind of fault in a small tree and require check_tree to name it."""
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).parent.parent / "check_tree"
FAULTS = {
    "proto/a.c": ('/* a */\n#include "kvpool/kvpool.h"\n', "proto may not depend on kvpool"),
    "kvpool/b.c": ('/* b */\n#include "scheduler/sched.h"\n', "kvpool may not depend on scheduler"),
    "server/c.c": ('/* c */\n#include "model/load/safetensors.h"\n', "private to model"),
    "model/d.c": ("int d;\n", "does not open with a comment"),
    "attention/e.c": ("/* e */\n" + "\n" * 900, "at most 800 expected"),
    "scheduler/f.c": ('/* f */\n#include "oddity.h"\n', 'expected "FOLDER/HEADER"'),
}


def run(root):
    done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
    return done.returncode, done.stdout


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    for folder in ("proto", "kvpool", "scheduler", "attention", "model", "server", "tests"):
        (root / folder).mkdir()
    code, out = run(root)
    assert code == 0 and out == "0 findings\n", out
    for path, (text, expected) in FAULTS.items():
        (root / path).write_text(text)
        code, out = run(root)
        assert code == 1 and expected in out and path in out, (path, out)
        (root / path).unlink()
print("all kinds of fault found")
