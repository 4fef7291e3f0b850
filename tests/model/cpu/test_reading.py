"""A reader gives the states of its model, without computing padding; what it cannot run, the model does."""

import pytest
import torch

from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.cpu import kernels
from heedful.model.cpu.reading import reader

needs_kernels = pytest.mark.skipif(kernels.NATIVE is None, reason="no kernels were compiled")


def model_of(*, heads=3, placement="post", activation="gelu", mix=None):
    torch.manual_seed(0)
    attention = {"heads": heads, "dropout": 0.1} | ({} if mix is None else {"mix": {"kind": mix}})
    encoder = {
        "kind": "transformer",
        "layers": 2,
        "placement": placement,
        "embedding_norm": True,
        "attention": attention,
        "feedforward": {"hidden": 80, "activation": activation},
        "position": {"kind": "learned", "length": 41},
    }
    model = EncoderOnlyConfig(vocab=53, width=48, token_types=2, encoder=encoder).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch():
    source, types = torch.randint(53, (5, 37)), torch.randint(2, (5, 37))
    valid = torch.arange(37) < torch.tensor([37, 1, 20, 0, 13])[:, None]
    valid[0, 5] = False  # a hole
    return source, types, valid


@needs_kernels
@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "geglu"])
def test_states_equal_those_of_the_model(placement, activation):
    model = model_of(placement=placement, activation=activation)
    source, types, valid = batch()
    fast = reader(model)
    assert fast.reason is None
    with torch.no_grad():
        wanted = model(source, token_types=types, valid=valid)
    found = fast(source, token_types=types, valid=valid)
    torch.testing.assert_close(found[valid], wanted[valid], atol=1e-5, rtol=1e-5)
    assert not found[~valid].any()
    with torch.no_grad():
        torch.testing.assert_close(fast(source), model(source), atol=1e-5, rtol=1e-5)


@needs_kernels
def test_int8_is_close_and_leaves_the_model_as_it_is():
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source, types, valid = batch()
    found = reader(model, "int8")(source, token_types=types, valid=valid)[valid]
    with torch.no_grad():
        wanted = model(source, token_types=types, valid=valid)[valid]
    assert not torch.equal(found, wanted)
    assert torch.nn.functional.cosine_similarity(found, wanted, dim=-1).min() > 0.999
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@needs_kernels
@pytest.mark.parametrize(
    ("options", "reason"),
    [({"heads": 6}, "encoder: head 8 is not a multiple of 16"), ({"mix": "reference"}, "reference: no kernel yet")],
)
def test_what_has_no_kernel_is_left_to_the_model(options, reason):
    model = model_of(**options)
    source, types, valid = batch()
    valid = valid | (torch.arange(37) == 0)
    fast = reader(model)
    assert reason in str(fast.reason)
    with torch.no_grad():
        wanted = model(source, token_types=types, valid=valid)
    assert torch.equal(fast(source, token_types=types, valid=valid), wanted)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        reader(model_of().train())
    with pytest.raises(ValueError, match="choose False or 'int8'"):
        reader(model_of(), "int4")
    with pytest.raises(ValueError, match="learned 41 positions; shorten the input|limited to 41|learned 41"):
        reader(model_of())(torch.zeros(1, 42, dtype=torch.long))
