"""Plant a fault in a small tree and require check_tidy to name it, to pass what
is clean without a second look, and to look again when a header differs."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
CLEAN = '#include "size.h"\nint twice(int x);\nint twice(int x)\n{\n    return x * SIZE;\n}\n'
FAULT = CLEAN + ("#include <string.h>\nvoid clear(char *p);\nvoid clear(char *p)\n{\n"
                 "    memset(p, sizeof *p, 0);\n}\n")


def run(root):
    done = subprocess.run([sys.executable, root / "tests" / "check_tidy", root / "build"],
                          capture_output=True, text=True)
    return done.returncode, done.stdout


if not shutil.which("clang-tidy-19"):
    print("no clang-tidy-19 here")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name).resolve()
    for folder in ("tests", "server", "build"):
        (root / folder).mkdir()
    shutil.copy(TESTS / "check_tidy", root / "tests")
    shutil.copy(TESTS / ".clang-tidy", root / "tests")
    shutil.copy(TESTS.parent / ".clang-tidy", root)
    source, header = root / "server" / "a.c", root / "server" / "size.h"
    (root / "build" / "compile_commands.json").write_text(json.dumps([
        {"directory": name, "file": str(source), "command": f"cc -std=c17 -o a.o -c {source}"}]))
    header.write_text("#define SIZE 2\n")
    source.write_text(FAULT)
    code, out = run(root)
    assert code == 1 and "bugprone-suspicious-memset-usage" in out and "server/a.c" in out, out
    source.write_text(CLEAN)
    assert run(root) == (0, "1 files, 1 looked at, 0 with findings\n")
    assert run(root) == (0, "1 files, 0 looked at, 0 with findings\n")
    header.write_text("#define SIZE 3\n")
    assert run(root) == (0, "1 files, 1 looked at, 0 with findings\n")
print("a fault is found, what is clean is passed, what differs is looked at again")
