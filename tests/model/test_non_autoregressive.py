"""The non-autoregressive architecture: what is copied, who sees whom, and the same by kernels."""

import pytest
import torch
from torch import nn

from heedful.config import kinds, part_config
from heedful.inspection.cost import cost
from heedful.inspection.visibility import seen_at_once
from heedful.model.architecture.non_autoregressive import NonAutoregressiveConfig, copies
from heedful.model.attention import MixConfig
from heedful.model.cpu.kernels import NATIVE
from heedful.model.cpu.parallel import lower_parallel
from heedful.model.cpu.report import report
from heedful.model.create import create
from heedful.model.mask import Mask
from heedful.model.multihead import Places
from heedful.model.sight import Sight
from heedful.model.stack.transformer import waves_of

VOCAB, SOURCE = 23, 7
VALID = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
FERTILITIES = torch.tensor([[2, 0, 1, 3, 0, 1, 1], [1, 2, 0, 2, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]])
ABLE = [kind for kind in kinds("model/attention") if "others_only" in part_config(MixConfig, kind).supports]
METHODS = ("fertility", "mask_predict")


def config(method="fertility", *, width=28, head=6, heads=4, hidden=13, placement="pre", mix="softmax", **more):
    stack = {"layers": 2, "attention": {"heads": heads, "head_width": head, "mix": mix}, "placement": placement,
             "feedforward": {"hidden": hidden}, "dropout": 0.0}  # fmt: skip
    keys = {"vocab": VOCAB, "width": width, "method": method, "max_fertility": 5, "encoder": stack, "decoder": stack}
    return NonAutoregressiveConfig(**{**keys, **more})


def make(*words, **options):
    torch.manual_seed(1)
    model = create(config(*words, **options)).eval()
    with torch.no_grad():  # biases and norms too must matter
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens(rows, length, seed=0):
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def written(model, source, valid=None, fertilities=FERTILITIES):
    """States of the decoder, and which are real."""
    encoded = model.encode(source, valid=valid)
    inputs, real = model.copied(encoded, fertilities)
    if model.method == "mask_predict":
        target = tokens(*real.shape, seed=3)
        inputs = model.masked(target, target % 2 == 0)
    return model.decode(inputs, encoded, valid=real), real


def close(first, second, tolerance=2e-5):
    return torch.allclose(first, second, atol=tolerance, rtol=1e-4)


def test_tokens_are_copied_as_by_the_length_regulator_of_transformers():
    conformer = pytest.importorskip("transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer")
    torch.manual_seed(0)
    ours, theirs = (torch.randn(3, SOURCE, 5, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    ours.requires_grad_(), theirs.requires_grad_()
    found, valid = copies(ours, FERTILITIES)
    wanted = conformer.length_regulator(theirs, FERTILITIES)
    assert valid.sum(1).tolist() == FERTILITIES.sum(1).tolist()
    assert torch.equal(found[valid], wanted[valid])
    (found[valid] * torch.linspace(-1, 1, 5)).sum().backward()
    (wanted[valid] * torch.linspace(-1, 1, 5)).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad)


def test_positional_attention_is_torchs_with_positions_for_queries_and_keys():
    model, length = make(width=20, head=None, heads=4), 9
    own = model.decoder.each_layer()[0].positional
    theirs = nn.MultiheadAttention(20, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([own.query_key.weight, own.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([own.query_key.bias, own.value.bias]))
        theirs.out_proj.weight.copy_(own.output.weight)
        theirs.out_proj.bias.copy_(own.output.bias)
    first, second = (torch.randn(3, length, 20, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    first.requires_grad_(), second.requires_grad_()
    valid = torch.arange(length) < torch.tensor([[length], [4], [1]])
    waves = waves_of(torch.arange(length)[None], 20).float()
    found = own(first, places=Places(waves, Sight(Mask(key_valid=valid))))
    where = waves.expand(3, -1, -1)
    wanted, _ = theirs(where, where, second, key_padding_mask=~valid)
    (found * torch.linspace(-1, 1, 20)).sum().backward()
    (wanted * torch.linspace(-1, 1, 20)).sum().backward()
    assert close(found, wanted) and close(first.grad, second.grad)
    assert close(own.value.weight.grad, theirs.in_proj_weight.grad[40:], 1e-4)
    assert close(own.query_key.weight.grad, theirs.in_proj_weight.grad[:40], 1e-4)


@pytest.mark.parametrize("mix", ABLE)
def test_no_position_sees_itself_but_all_others(mix):
    """Its own value reaches it only by the residual and by positional attention."""
    torch.manual_seed(0)
    attention = {"heads": 4, "head_width": 6, "mix": mix}
    model = create(config(decoder={"layers": 1, "attention": attention, "dropout": 0.0})).eval()
    own, length, seen = model.decoder.each_layer()[0].attention, 6, []
    own.mix.register_forward_pre_hook(lambda mix, given, words: seen.append((given, words)), with_kwargs=True)
    model.decode(torch.randn(1, length, 28), model.encode(tokens(1, SOURCE)))
    ((query, key, value), words), *_ = seen
    value = value.detach().requires_grad_()
    states = own.mix(query, key, value, **words)
    for place in range(length):
        (slope,) = torch.autograd.grad(states[0, :, place].square().sum(), value, retain_graph=True)
        size = slope[0].abs().amax((0, 2))
        assert size[place] == 0
        assert (size[[other for other in range(length) if other != place]] > 0).all()


def test_the_picture_of_who_sees_whom_is_all_but_the_diagonal():
    assert torch.equal(seen_at_once(5), ~torch.eye(5, dtype=torch.bool))
    assert Mask(others_only=True).facts() == {"others_only"}


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_padding_and_neighbours_change_nothing(method):
    model, source = make(method), tokens(3, SOURCE)
    whole, real = written(model, source, VALID)
    other = torch.where(VALID, source, (source + 5) % VOCAB)
    assert close(written(model, other, VALID)[0][real], whole[real])
    if method == "mask_predict":
        return  # `written` draws words by the shape of the batch
    for row in range(3):
        length = int(VALID[row].sum())
        alone, _ = written(model, source[row : row + 1, :length], fertilities=FERTILITIES[row : row + 1, :length])
        assert close(alone[0], whole[row][real[row]])


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_word_depends_on_all_others_on_both_sides(method):
    model, source = make(method), tokens(1, SOURCE)
    encoded, count = model.encode(source), torch.ones(1, SOURCE, dtype=torch.long)
    inputs, real = model.copied(encoded, count)
    for place in (0, SOURCE - 1):
        changed = inputs.clone()
        changed[0, place] = torch.linspace(-1, 1, 28).roll(9)
        difference = (model.decode(changed, encoded, valid=real) - model.decode(inputs, encoded, valid=real)).abs()
        assert (difference.amax(-1) > 1e-4).all()


@torch.no_grad()
def test_candidates_share_a_source():
    model, source = make(), tokens(2, SOURCE)
    both = torch.stack([FERTILITIES[0], FERTILITIES[0].flip(0), FERTILITIES[1], FERTILITIES[2]])
    states, real = written(model, source, fertilities=both)
    twice, again = written(model, source.repeat_interleave(2, dim=0), fertilities=both)
    assert torch.equal(real, again) and close(states[real], twice[real])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.skipif(NATIVE is None, reason="no kernels")
@torch.no_grad()
def test_kernels_give_the_same(method, placement):
    model = make(method, width=32, head=None, heads=2, hidden=48, placement=placement)
    quick = lower_parallel(model)
    assert quick, quick
    for rows, fertilities in ((3, FERTILITIES), (3, FERTILITIES.repeat_interleave(2, dim=0)), (1, FERTILITIES[:1])):
        source, valid = tokens(rows, SOURCE), VALID[:rows]
        plain, fast = model.encode(source, valid=valid), quick.encode(source, valid=valid)
        assert close(plain.fertilities[valid], fast.fertilities[valid], 1e-4)
        inputs, real = model.copied(plain, fertilities)
        if method == "mask_predict":
            inputs = model.masked(tokens(*real.shape), tokens(*real.shape, seed=1) % 3 > 0)
        states = model.decode(inputs, plain, valid=real)[real]
        found = quick.decode(inputs, fast, valid=real)[real]
        assert close(states, found, 1e-4) and close(model.logits(states), quick.logits(found), 1e-4)
    model.fertility.weight.mul_(2)
    quick.refresh()
    assert close(model.encode(source).fertilities, quick.encode(source).fertilities, 1e-4)


@pytest.mark.skipif(NATIVE is None, reason="no kernels")
@pytest.mark.parametrize(("changes", "reason"), [
    ({"width": 28, "head": None}, "head 7 is not a multiple of 8"),
    ({"width": 32, "head": None}, "decoder.layers.0.attention: head 8 is not a multiple of 16"),
])  # fmt: skip
def test_what_has_no_kernel_says_so(changes, reason):
    model = make(**changes)
    found = lower_parallel(model)
    assert not found and reason in str(found)
    assert any("modules" in row.decoding for row in report(model))


@pytest.mark.skipif(NATIVE is None, reason="no kernels")
def test_the_doctor_knows_every_part():
    rows = {row.part: row for row in report(make(width=32, head=None, heads=2, hidden=48))}
    assert rows["decoder.positional"].decoding == rows["decoder.attention"].decoding == "kernels"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("more", [{}, {"tie": "output", "source_vocab": 17}, {"embedding": {"width": 12}}])
def test_parameters_are_counted(method, more):
    found = cost(config(method, **more))
    assert found.formula == found.counted
    assert found.formula.get("decoder.positional", 0) == (
        0 if method == "mask_predict" else found.formula["decoder.attention"]
    )


@pytest.mark.parametrize(("changes", "text"), [
    ({"source_vocab": 17}, "tie 'all' shares one table, but source_vocab 17 is not vocab 23; choose tie 'output'"),
    ({"mix": "linear"}, "decoder: attention linear does not support"),
    ({"decoder": "recurrent"}, "this must be transformer, not 'recurrent'"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        config(**changes)
