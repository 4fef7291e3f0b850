"""Our kernels do what torch does, whatever the sizes."""

import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.model.cpu import kernels
from heedful.model.cpu.kernels import MISSING, NATIVE, Panels

sizes = st.integers(1, 600)
SWITCH = "HEEDFUL_KERNELS"
needed = pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")
few = settings(max_examples=60, deadline=None)


@needed
@few
@given(rows=st.one_of(st.integers(1, 14), st.integers(150, 400)), depth=sizes, columns=sizes, bias=st.booleans(),
       add=st.booleans(), relu=st.booleans(), threads=st.integers(1, 2), seed=st.integers(0, 99))  # fmt: skip
def test_a_product(rows, depth, columns, bias, add, relu, threads, seed):
    torch.manual_seed(seed)
    weight, x, y = torch.randn(columns, depth), torch.randn(rows, depth), torch.randn(rows, columns)
    offset = torch.randn(columns) if bias else None
    wanted = F.linear(x.double(), weight.double(), None if offset is None else offset.double()) + (y if add else 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        Panels(weight, offset).into(y, x, add=add, relu=relu)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(y.double(), wanted.relu() if relu else wanted, atol=1e-4, rtol=1e-4)


@needed
@few
@given(rows=st.one_of(st.integers(1, 14), st.integers(150, 400)), depth=sizes, columns=sizes, seed=st.integers(0, 99))
def test_a_product_in_int8(rows, depth, columns, seed):
    torch.manual_seed(seed)
    weight, x = torch.randn(columns, depth), torch.randn(rows, depth) * torch.rand(rows, 1).exp2()
    panels = Panels(weight, torch.ones(columns), int8=True)
    rounded = panels.rows(torch.arange(columns))
    torch.testing.assert_close(rounded, weight, atol=float(weight.abs().max()) / 250, rtol=0)
    wanted = F.linear(x.double(), rounded.double()) + 1
    error = 1e-4 * float(x.abs().max()) * depth**0.5
    torch.testing.assert_close(panels(x).double(), wanted, atol=error, rtol=1e-4)


@needed
def test_the_largest_sums_of_int8_do_not_overflow():
    panels = Panels(torch.full((3, 5000), -0.7), int8=True)
    torch.testing.assert_close(panels(torch.full((7, 5000), 2.0)), torch.full((7, 3), -7000.0))


@needed
def test_zeros_and_what_is_not_laid_out_for_it():
    weight = torch.randn(5, 8)
    for int8 in (False, True):
        panels = Panels(weight, int8=int8)
        assert torch.equal(panels(torch.zeros(2, 8)), torch.zeros(2, 5))
        x = torch.randn(8, 3, dtype=torch.float64).t()
        torch.testing.assert_close(panels(x), x.float() @ weight.t(), atol=0.1, rtol=0.1)


@needed
@few
@given(rows=st.integers(1, 9), width=sizes, seed=st.integers(0, 99), bias=st.booleans(), rms=st.booleans())
def test_a_norm(rows, width, seed, bias, rms):
    torch.manual_seed(seed)
    x, weight, offset = torch.randn(rows, width) + 3, torch.randn(width), torch.randn(width) if bias else None
    wanted = F.rms_norm(x, (width,), weight, 1e-5) if rms else F.layer_norm(x, (width,), weight, offset, 1e-5)
    kernels.norm(x, weight, None if rms else offset, rms=rms, eps=1e-5)
    torch.testing.assert_close(x, wanted, atol=2e-5, rtol=2e-5)


@needed
@pytest.mark.parametrize("int8", [False, True])
def test_vectors_of_tokens(int8):
    table, places, tokens = torch.randn(37, 13), torch.randn(3, 13), torch.tensor([0, 36, 5, 5, 16, 15])
    held = Panels(table, int8=True) if int8 else table
    x = kernels.embed(tokens, held, 2.0, places)
    rows = held.rows(tokens) if int8 else table[tokens]
    torch.testing.assert_close(x, rows * 2 + places.repeat(2, 1))
    with pytest.raises(IndexError, match="a token is not one of the 37 of the table"):
        kernels.embed(tokens + 1, held, 2.0, places)


@needed
@few
@given(rows=st.integers(1, 20), size=st.integers(1, 3000), scale=st.sampled_from([0.1, 10.0, 300.0]),
       hide=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
def test_log_softmax(rows, size, scale, hide, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, size) * scale
    if hide:
        x[:, 1:][torch.rand(rows, size - 1) < 0.5] = -torch.inf
    wanted = x.log_softmax(-1)
    torch.testing.assert_close(kernels.log_softmax(x), wanted, atol=2e-6, rtol=2e-6)


@needed
@few
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 20), width=st.integers(1, 3000), count=st.integers(1, 12))
def test_the_largest(seed, rows, width, count):
    numbers = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    numbers[0, : width // 2] = -torch.inf
    count = min(count, width)
    values, places = kernels.largest(numbers, count)
    assert torch.equal(values, numbers.topk(count).values) and torch.equal(numbers.gather(1, places), values)
    assert all(len(set(row)) == count for row in places.tolist())


@needed
@few
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), beams=st.integers(1, 5), width=st.integers(1, 700))
def test_the_largest_of_beams(seed, rows, beams, width):
    torch.manual_seed(seed)
    numbers, offsets, count = torch.randn(rows, beams * width), torch.randn(rows, beams), min(10, beams * width)
    offsets[0, 1:] = -torch.inf
    fast = kernels.largest(numbers, count, offsets)
    slow = kernels.largest(numbers.double(), count, offsets)
    torch.testing.assert_close(fast[0], slow[0].float())
    real = fast[0] > -torch.inf
    assert torch.equal(fast[1][real], slow[1][real])


def test_they_are_compiled_where_there_is_a_compiler():
    """Without one they are left out in silence, and so would they be if they did not compile."""
    header, processor = Path(sysconfig.get_path("include"), "Python.h"), Path("/proc/cpuinfo")
    compiler = shutil.which("gcc") and "gcc" in (sysconfig.get_config_var("CC") or "") and header.exists()
    if compiler and processor.exists() and "avx2" in processor.read_text() and os.environ.get(SWITCH) != "off":
        assert NATIVE is not None, MISSING
        best = "avx512_vnni" in processor.read_text() and not os.environ.get(SWITCH)
        assert not best or NATIVE.PROCESSOR == "AVX-512"


def test_they_can_be_turned_off():
    code = "from heedful.model.cpu.kernels import MISSING, NATIVE; print(NATIVE, MISSING)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, SWITCH: "off"}, capture_output=True, text=True, check=True
    )
    assert found.stdout == "None HEEDFUL_KERNELS is off\n"


def test_what_is_asked_for_must_be_there():
    found = subprocess.run(
        [sys.executable, "-m", "heedful", "doctor"], env={**os.environ, SWITCH: "no"}, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "HEEDFUL_KERNELS is 'no'; choose off or avx2, or leave it out" in found.stderr


@pytest.mark.skipif(NATIVE is None or NATIVE.PROCESSOR != "AVX-512", reason="there is but one kind of kernels here")
def test_those_for_lesser_processors_do_the_same():
    files = [
        str(Path(__file__).with_name(name)) for name in ("test_kernels.py", "test_training.py", "test_decoding.py")
    ]
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", *files]
    done = subprocess.run(command, env={**os.environ, SWITCH: "avx2"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


@needed
def test_what_does_not_fit_is_refused():
    panels = Panels(torch.randn(5, 8))
    for x, y in (((2, 16), (2, 5)), ((2, 8), (1, 5)), ((2, 8), (2, 6))):
        with pytest.raises(ValueError, match="with weights of 5 x 8"):
            panels.into(torch.empty(y), torch.empty(x))
    with pytest.raises(ValueError, match=r"\[3, 16\] to \[3, 5\] with weights of 5 x 8"):
        panels(torch.randn(3, 16))


@needed
def test_copies_have_weights_of_their_own():
    panels, x = Panels(torch.randn(5, 8), int8=True), torch.randn(3, 8)
    wanted, copied = panels(x), pickle.loads(pickle.dumps(deepcopy(panels)))
    assert not {copied.fields[name] for name in ("weight", "scales")} & set(panels.fields.values()) and torch.equal(
        copied(x), wanted
    )


@needed
def test_arguments_that_are_missing_are_told():
    with pytest.raises(TypeError, match="1 arguments, but there are 4"):
        NATIVE.log_softmax(0)
