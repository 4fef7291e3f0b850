"""The kernels' portable path, for arm64 and other processors than x86-64, beside plain loops (portable.c)."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "src" / "heedful" / "model" / "cpu" / "native"


@pytest.mark.parametrize(
    ("compiler", "runner"),
    [(["gcc"], []), (["aarch64-linux-gnu-gcc", "-static"], ["qemu-aarch64"])],
    ids=["here", "arm64"],
)
def test_without_the_instructions_of_a_processor_they_compute_the_same(compiler, runner, tmp_path):
    """For arm64: apt install gcc-aarch64-linux-gnu qemu-user"""
    for program in (compiler[0], *runner):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    program = str(tmp_path / "portable")
    flags = ["-O2", "-fopenmp", "-Wno-psabi", f"-I{NATIVE}", str(HERE / "portable.c"), "-o", program, "-lm"]
    subprocess.run([*compiler, *flags], check=True, capture_output=True)
    done = subprocess.run([*runner, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("any processor: 0 wrong\n") and done.stdout.count("\n") > 25


def test_a_wrong_result_is_noticed(tmp_path):
    """With a norm that is slightly off."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    text = (HERE / "portable.c").read_text().replace("eps = 1e-5;", "eps = 1e-3;").replace("(float)eps", "1e-5f")
    (tmp_path / "wrong.c").write_text(text)
    program = str(tmp_path / "wrong")
    flags = ["-O1", "-fopenmp", "-Wno-psabi", f"-I{NATIVE}", str(tmp_path / "wrong.c"), "-o", program, "-lm"]
    subprocess.run(["gcc", *flags], check=True, capture_output=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 1 and "any processor: 2 wrong" in done.stdout
