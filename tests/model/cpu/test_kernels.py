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
from heedful.model.cpu.layers import STRUCTS, Layers, Texts

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
@pytest.mark.parametrize(("columns", "depth"), [(5, 48), (16, 16), (37, 32), (161, 48)])
def test_a_matrix_is_packed_by_the_kernels_as_by_torch(monkeypatch, columns, depth):
    weight = torch.randn(columns, depth)
    found = [kernels._packed(one) for one in (weight, weight.T)]
    monkeypatch.setattr(kernels, "_packed", lambda weight: None)
    for one, other in zip(found, (weight, weight.T), strict=True):
        assert torch.equal(one, Panels(other).values)


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
    assert "HEEDFUL_KERNELS is 'no'; choose off or avx2, or unset it" in found.stderr


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
        with pytest.raises(ValueError, match="does not fit weights of 5 x 8"):
            panels.into(torch.empty(y), torch.empty(x))
    with pytest.raises(ValueError, match=r"\[3, 16\] to \[3, 5\] does not fit weights of 5 x 8"):
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


def layers(width=16, heads=2, *, cross=True, **changes):
    names = {"query_key_value": (3, 1), "output": (1, 1), "inner": (2, 1), "outer": (1, 2)}
    names |= {"cross_query": (1, 1), "cross_output": (1, 1)} if cross else {}
    shapes = {name: (rows * width, columns * width) for name, (rows, columns) in names.items()} | changes
    maps = {name: Panels(torch.randn(shape)) for name, shape in shapes.items()}
    norms = {name: (torch.ones(width), None) for name in ("attention_norm", "feedforward_norm")}
    norms |= {"cross_norm": (torch.ones(width), None)} if cross else {}
    style = {"width": width, "heads": heads, "kv_heads": heads, "head": width // heads, "eps": 1e-5}
    style |= {"cross_heads": heads, "cross_head": width // heads, "scale": 1.0, "cross_scale": 1.0}
    return Layers({**style, "pre": 0, "rms": 0, "kind": 0, "gated": 0}, [maps], [norms])


def sources(sentences=2, source=5):
    return [kernels.lay_out_source(torch.randn(sentences * source, 32), sentences, 2, 8)]


@needed
@pytest.mark.parametrize(("change", "message"), [
    ({"heads": 3}, "3 heads of 5: there must be one at least, of a multiple of 8"),
    ({"heads": 4}, "4 heads of 4: there must be one at least, of a multiple of 8"),
    ({"output": (16, 8)}, r"output is \(16, 8\), but must be \(16, 16\)"),
    ({"inner": (24, 16)}, r"inner is \(24, 16\), but must be \(32, 16\)"),
])  # fmt: skip
def test_layers_of_other_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        layers(**change)


@needed
def test_a_field_that_nobody_fills_in_is_refused():
    """Were a struct of native/fields.h to get a new one, Python could not forget it."""
    maps, norms = layers().held
    style = {name: 1 for name in STRUCTS["Style"].names if name != "threads"} | {"width": 16, "gated": 0}
    style |= {"head": 16, "cross_head": 16}
    Layers(style, maps, norms)
    with pytest.raises(ValueError, match="the style lacks cross_scale, eps"):
        Layers({name: style[name] for name in style if name not in ("eps", "cross_scale")}, maps, norms)
    for lacking in ("output", "cross_query"):
        with pytest.raises(ValueError, match=f"the layer lacks {lacking}"):
            Layers(style, [{name: one for name, one in maps[0].items() if name != lacking}], norms)
    with pytest.raises(ValueError, match="the layer lacks attention_norm"):
        Layers(style, maps, [{name: one for name, one in norms[0].items() if name != "attention_norm"}])


@needed
def test_what_an_encoder_is_given_is_checked():
    encoder, x, additive = layers(cross=False), torch.randn(10, 16), torch.zeros(2, 8)
    encoder.encode(x.clone(), additive)
    for bad, mask in (
        (x[:9], additive), (x[:, :8], additive), (x.double(), additive), (x.T.contiguous().T, additive),
        (x, additive[:, :5]), (x, torch.zeros(2, 16)), (x, additive.double()), (x[:0], additive[:0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="does not fit layers of width 16"):
            encoder.encode(bad, mask)


@needed
def test_what_a_step_is_given_is_checked():
    decoder = layers()
    store, additive = torch.zeros(1, 4, 6, 2, 16), torch.zeros(2, 8)
    texts, x, origin = Texts(decoder, store, sources()), torch.randn(4, 16), torch.zeros(4, 4, dtype=torch.int32)
    decoder.step(texts, x.clone(), origin, 1, additive=additive)
    for bad in (
        (x[:3], additive, origin[:3], 1), (x, additive, origin[:3], 1), (x, additive, origin.long(), 1),
        (x, additive, origin, 0), (x, additive, origin, 5), (x[:, :8], additive, origin, 1),
        (x.double(), additive, origin, 1), (x, additive[:1], origin, 1), (x, torch.zeros(2, 16), origin, 1),
        (torch.randn(8, 16), additive, torch.zeros(8, 4, dtype=torch.int32), 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="does not fit 2 sentences with room for 6 rows of 4 tokens"):
            x_, additive_, origin_, length = bad
            decoder.step(texts, x_, origin_, length, additive=additive_)
    whole = torch.zeros(4, dtype=torch.int32)
    for name, one in (
        ("additive", None), ("starts", whole.long()), ("starts", whole[:3]), ("turns", torch.zeros(4, 4)),
        ("turns", torch.zeros(3, 8)), ("biases", torch.zeros(3, 4)), ("biases", torch.zeros(2, 0)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="does not fit 2 sentences"):
            decoder.step(texts, x, origin, 1, **{"additive": additive, name: one})
    for start in (-1, 1):
        with pytest.raises(ValueError, match=f"the start of a row is {start}, but must be 0 to 0"):
            decoder.step(texts, x, origin, 1, additive=additive, starts=whole + start)
    with pytest.raises(ValueError, match="does not fit 2 sentences"):
        layers().step(texts, x, origin, 1, additive=additive)


@needed
def test_texts_of_other_layers_are_refused():
    store = torch.zeros(1, 4, 6, 2, 16)
    for decoder, one, other in (
        (layers(cross=False), store, sources()), (layers(), store[..., :8], sources()), (layers(), store, ()),
        (layers(), store.double(), sources()), (layers(32), store, sources()), (layers(heads=1), store, sources()),
        (layers(), store, sources() * 2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="do not fit these layers"):
            Texts(decoder, one, other)


@needed
def test_the_rest_of_what_is_handed_over_is_checked():
    x, weight = torch.randn(3, 16), torch.ones(16)
    for rows, by, bias in (
        (x, weight[:8], None),
        (x, weight, weight[:8]),
        (x.double(), weight, None),
        (x.T, weight[:3], None),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            kernels.norm(rows, by, bias, rms=False, eps=1e-5)
    with pytest.raises(ValueError, match=r"\[10, 30\] does not fit 2 heads of 8 in 2 sentences"):
        kernels.lay_out_source(torch.randn(10, 30), 2, 2, 8)
    with pytest.raises(ValueError, match="in 3 sentences"):
        kernels.lay_out_source(torch.randn(10, 32), 3, 2, 8)
    table, tokens = torch.randn(7, 16), torch.tensor([1, 2])
    for positions in (torch.zeros(0, 16), torch.zeros(1, 8), torch.zeros(3, 16), torch.zeros(1, 16).double()):
        with pytest.raises(ValueError, match="do not fit a table of 7 x 16"):
            kernels.embed(tokens, table, 1.0, positions)
    for bad in (table.double(), table.T.contiguous().T, Panels(table)):
        with pytest.raises(ValueError, match="do not fit a table of 7 x 16"):
            kernels.embed(tokens, bad, 1.0, torch.zeros(1, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # with kernels and without
def test_what_is_largest_must_exist(dtype):
    for width, count in ((0, 1), (3, 4), (3, 0)):
        with pytest.raises(ValueError, match=f"cannot find the {count} largest of {width} numbers"):
            kernels.largest(torch.zeros(2, width, dtype=dtype), count)
    for offsets in (torch.zeros(2, 4), torch.zeros(3, 3), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="do not fit 2 rows of 6 numbers"):
            kernels.largest(torch.zeros(2, 6, dtype=dtype), 1, offsets)
    assert kernels.log_softmax(torch.zeros(2, 0)).shape == (2, 0)


@needed
def test_structs_are_as_c_has_them():
    """One after the other without gaps that Python would not know of, and with every address in eight bytes."""
    assert set(STRUCTS) == {"Map", "Norm", "Layer", "Style"}
    for name, found in STRUCTS.items():
        ends = [found.fields[field][1] + found.fields[field][0].itemsize for field in found.names]
        assert sorted(ends) == ends and found.itemsize - ends[-1] < 8, name
    assert STRUCTS["Layer"]["output"] == STRUCTS["Map"]
    for field in ("weight", "scales", "bias"):
        assert STRUCTS["Map"][field] == "int64"
    made = layers()
    assert made.style["width"] == 16 and made.style["layers"] == 1 and not made.style["threads"]
    assert made.table["outer"]["depth"][0] == 32 and made.table["cross_query"]["columns"][0] == 16
    assert made.table["attention_norm"]["weight"][0] and not made.table["attention_norm"]["bias"][0]


ARGUMENTS = {
    "product": 12, "encode": 9, "step": 17, "lay_out": 9, "embed": 10, "norm": 8, "drop": 8, "activate": 6,
    "attend": 33, "attend_back": 49, "linear_room": 4, "linear": 12, "cross_entropy": 7, "largest": 9, "log_softmax": 4,
    "feed": 23, "feed_room": 6, "pack": 6, "rotate": 17, "weight_gradient": 9, "is_invertible": 3, "add_norm": 18,
    "read_prompts": 13,
}  # fmt: skip


@needed
@pytest.mark.parametrize("name", ARGUMENTS)
def test_c_refuses_sizes_and_addresses_that_cannot_be(name):
    function, count = getattr(NATIVE, name), ARGUMENTS[name]
    for value, error in (
        (0, ValueError),
        (-1, ValueError),
        ("x", TypeError),
        (None, TypeError),
        (2**70, OverflowError),
    ):
        with pytest.raises(error):
            function(*[value] * count)
    with pytest.raises(TypeError, match=f"0 arguments, but there are {count}"):
        function()


@needed
def test_c_says_which_size_is_wrong_and_what_it_must_be():
    x = torch.zeros(2, 16)
    at = x.data_ptr()
    for numbers, message in (
        ((at, 0, 0, 1e-5, at, 2, 0, 1), "width is 0, but must be 1 to 1099511627776"),
        ((at, 0, 0, 1e-5, at, -2, 16, 1), "rows is -2, but must be 0 to 1099511627776"),
        ((at, 0, 0, 1e-5, at, 2, 16, 0), "threads is 0, but must be 1 to 4096"),
        ((0, 0, 0, 1e-5, at, 2, 16, 1), "weight is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            NATIVE.norm(*numbers)
    with pytest.raises(ValueError, match="count is 4, but must be 1 to 3"):
        NATIVE.largest(at, 0, 1, 1, 3, 4, at, at, 1)
    with pytest.raises(ValueError, match="inputs is 24, but must be a multiple of 16"):
        NATIVE.linear_room(24, 16, 0, 1)
    with pytest.raises(ValueError, match="kind is 4, but must be 0 to 3"):
        NATIVE.activate(4, at, 0, at, 16, 1)


@needed
def test_slots_that_are_not_there_are_refused():
    decoder, x = layers(), torch.randn(4, 16)
    texts = Texts(decoder, torch.zeros(1, 4, 6, 2, 16), sources())
    for slot in (6, -1):
        origin = torch.zeros(4, 4, dtype=torch.int32)
        origin[3, 1] = slot
        decoder.step(
            texts, x.clone(), origin, 2, additive=torch.zeros(2, 8)
        )  # overwrites it: the slot of the newest token
        origin[3, 1] = slot
        with pytest.raises(IndexError, match=f"a token of row 3 is in slot {slot}, but there are 6"):
            decoder.step(texts, x.clone(), origin, 3, additive=torch.zeros(2, 8))


@needed
def test_packed_sentences_must_follow_each_other():
    reader, x = layers(32, cross=False), torch.randn(5, 32)
    reader.encode_packed(x.clone(), torch.tensor([2, 0, 3]))
    for lengths in ([6, -1], [2, 2], [2**62, 2**62, 2**62, 2**62 + 5], []):
        with pytest.raises(ValueError):
            reader.encode_packed(x, torch.tensor(lengths, dtype=torch.long))
    with pytest.raises(ValueError, match=r"lengths of \[1, 1\] are not one number for each sentence"):
        reader.encode_packed(x, torch.tensor([[5]]))


@needed
@pytest.mark.parametrize(("change", "message"), [
    ({"gated": 2}, "gated is 2, but must be 0 to 1"), ({"kind": 4}, "kind is 4, but must be 0 to 3"),
    ({"pre": -1}, "pre is -1, but must be 0 to 1"), ({"rms": 0.5}, "rms is 0.5, but must be 0 to 1"),
])  # fmt: skip
def test_a_style_that_c_does_not_know_is_refused(change, message):
    maps, norms = layers().held
    style = {name: 1 for name in STRUCTS["Style"].names if name != "threads"} | {"width": 16, "gated": 0}
    style |= {"head": 16, "cross_head": 16}
    with pytest.raises(ValueError, match=message):
        Layers(style | change, maps, norms)


@needed
def test_weights_biases_and_rows_that_are_not_there_are_refused():
    for shape in ((0, 5), (5, 0), (5,), (2, 3, 5)):
        with pytest.raises(ValueError, match="are not a matrix of outputs x inputs"):
            Panels(torch.ones(shape))
    with pytest.raises(ValueError, match=r"a bias of \[3\] does not fit weights of 5 x 8"):
        Panels(torch.randn(5, 8), torch.ones(3))
    for int8 in (False, True):
        panels = Panels(torch.randn(5, 8), int8=int8)
        assert torch.equal(panels.rows(torch.tensor([4, 0], dtype=torch.uint8)), panels.rows(torch.tensor([4, 0])))
        for number in (5, -1):
            with pytest.raises(IndexError, match=f"there is no row {number}; rows are 0 to 4"):
                panels.rows(torch.tensor([0, number]))
        with pytest.raises(IndexError, match="rows are numbered by integers, not torch.float32"):
            panels.rows(torch.tensor([1.0]))
