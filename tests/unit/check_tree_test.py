"""Plant each kind of fault in a small tree and require check_tree to name it."""
import pathlib
import runpy
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).parent.parent / "check_tree"
ROOMS = runpy.run_path(str(CHECK))["ROOMS"]
FAULTS = {
    "proto/a.c": ('/* a */\n#include "kvpool/kvpool.h"\n', "proto may not depend on kvpool"),
    "kvpool/b.c": ('/* b */\n#include "scheduler/sched.h"\n', "kvpool may not depend on scheduler"),
    "server/c.c": ('/* c */\n#include "model/load/safetensors.h"\n', "private to model"),
    "model/d.c": ("int d;\n", "does not open with a comment"),
    "attention/e.c": ("/* e */\n" + "\n" * 900, "at most 800 expected"),
    "scheduler/f.c": ('/* f */\n#include "oddity.h"\n', 'expected "FOLDER/HEADER"'),
}


# Files of the room proto/plan, as its library: a name without the room's prefix, and
# two files that call each other through a third.
SOUND = {"a": "int kv_b(void);\nint kv_a(void) { return kv_b(); }\n",
         "b": "int printf(const char *, ...);\nint kv_b(void) { return printf(\"\"); }\n",
         "c": "int kv_a(void);\nint kv_c(void) { return kv_a(); }\n"}
LIBRARY_FAULTS = [
    ("a", SOUND["a"] + "int pool_of(void) { return 1; }\n", "proto/plan/a.c: exports pool_of"),
    ("a", SOUND["a"] + "int of_pool = 1;\n", "proto/plan/a.c: exports of_pool"),
    ("b", "int kv_c(void);\nint kv_b(void) { return kv_c(); }\n",
     "proto/plan: circle of files: a.c, b.c, c.c"),
]


def run(*words):
    done = subprocess.run([sys.executable, CHECK, *words], capture_output=True, text=True)
    return done.returncode, done.stdout


def build(root, files):
    """The library of these sources at root/proto/plan/libproto_plan.a."""
    folder = root / "proto/plan"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.c").write_text(text)
        subprocess.run(["cc", "-c", f"{name}.c", "-o", f"{name}.c.o"], cwd=folder, check=True)
    library = folder / "libproto_plan.a"
    library.unlink(missing_ok=True)
    subprocess.run(["ar", "rc", library.name] + [f"{name}.c.o" for name in files], cwd=folder,
                   check=True)


def check_every_room():
    """No room is exempt: a circle of two oddly named functions is found in each."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        build(root, {"a": "int of_b(void);\nint of_a(void) { return of_b(); }\n",
                     "b": "int of_a(void);\nint of_b(void) { return of_a(); }\n"})
        made = root / "proto/plan/libproto_plan.a"
        for room in ROOMS:
            folder = root / room.removesuffix("/api")
            folder.mkdir(parents=True, exist_ok=True)
            library = folder / f"lib{room.replace('/', '_')}.a"
            if library != made:
                library.write_bytes(made.read_bytes())
        code, out = run("--symbols", root)
        for room in ROOMS:
            for line in (f"{room}/a.c: exports of_a", f"{room}: circle of files: a.c, b.c"):
                assert line in out, (line, out)
        assert code == 1 and out.endswith(f"{3 * len(ROOMS)} findings\n"), out


def check_libraries():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        code, out = run("--symbols", root)
        assert code == 1 and "no room's library" in out, out
        build(root, SOUND)
        code, out = run("--symbols", root)
        assert code == 0 and out == "0 findings\n", out
        for file, text, expected in LIBRARY_FAULTS:
            build(root, {**SOUND, file: text})
            code, out = run("--symbols", root)
            assert code == 1 and expected in out, (expected, out)


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
check_libraries()
check_every_room()
print("all kinds of fault found")
