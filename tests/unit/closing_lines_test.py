"""Let ctest run a suite of every outcome and require tests/closing_lines to
count each as what it is."""
import pathlib
import subprocess
import sys
import tempfile

CLOSING = pathlib.Path(__file__).parent.parent / "closing_lines"
SUITE = """
add_test(good "true")
add_test(also_good "true")
add_test(bad "false")
add_test(absent "/nonexistent/program")
add_test(left_out "sh" "-c" "exit 77")
set_tests_properties(left_out PROPERTIES SKIP_RETURN_CODE 77)
add_test(no_gpu "sh" "-c" "exit 77")
set_tests_properties(no_gpu PROPERTIES SKIP_RETURN_CODE 77 LABELS "unit;gpu")
add_test(gpu_good "true")
set_tests_properties(gpu_good PROPERTIES LABELS "gpu")
"""


def closing(folder, *options):
    record = folder / "record.xml"
    ctest = subprocess.run(["ctest", "--test-dir", folder, "--output-junit", record, *options],
                           capture_output=True, text=True)
    done = subprocess.run([sys.executable, CLOSING, folder, record], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctest.returncode, done.stdout.splitlines()


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "CTestTestfile.cmake").write_text(SUITE)
    code, lines = closing(folder)
    assert code != 0, code
    assert lines == ["gpu: 1 tests skipped (no GPU here)",
                     "tests: 3 passed, 2 failed, 2 skipped"], lines
    code, lines = closing(folder, "-R", "good")
    assert code == 0, code
    assert lines == ["gpu: 0 tests skipped", "tests: 3 passed, 0 failed, 0 skipped"], lines
print("every outcome counted as what it is")
