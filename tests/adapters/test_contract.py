"""What every adapter must keep, on every architecture."""

import pytest
import torch

from heedful.adapters import without
from heedful.config import kinds
from heedful.model.mask import positions_of
from tests.adapters.models import ARCHITECTURES, BATCH, FORMS, SIZES, SOURCE, TARGET, VOCAB, adapted, base, run

CASES = [(form, architecture) for form in FORMS for architecture in ARCHITECTURES]
cases = pytest.mark.parametrize(("form", "architecture"), CASES, ids=lambda value: value)
sizes = pytest.mark.parametrize("size", SIZES)


def test_every_kind_of_adapter_is_here():
    assert {form["kind"] for form in FORMS.values()} == set(kinds("adapters"))


@cases
def test_the_base_keeps_its_names_and_weights(form, architecture):
    model, _, _ = adapted(form, architecture, trained=False)
    ours, theirs = model.state_dict(), base(architecture).state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@cases
def test_an_untrained_adapter_changes_nothing(form, architecture):
    model, config, _ = adapted(form, architecture, trained=False)
    if config.neutral:
        torch.testing.assert_close(run(model, architecture), run(base(architecture), architecture))


@cases
@sizes
def test_a_trained_adapter_changes_the_output_and_without_it_the_base_speaks(form, architecture, size):
    model, config, _ = adapted(form, architecture, size)
    plain = run(base(architecture, size), architecture)
    assert (run(model, architecture) - plain).abs().max() > 0.01
    if config.kind not in ("bias", "layers"):  # these change the base's own weights
        with without(model):
            torch.testing.assert_close(run(model, architecture), plain)
        assert (run(model, architecture) - plain).abs().max() > 0.01


@cases
@sizes
def test_merged_equals_beside(form, architecture, size):
    model, config, _ = adapted(form, architecture, size)
    expected = run(model, architecture)
    if not config.merges:
        with pytest.raises(ValueError, match="cannot be merged"):
            config.merge(model)
        return
    config.merge(model)
    assert set(model.state_dict()) == set(base(architecture, size).state_dict())
    assert [type(one) for one in model.modules()] == [type(one) for one in base(architecture, size).modules()]
    torch.testing.assert_close(run(model, architecture), expected, rtol=1e-4, atol=1e-3)


@cases
@sizes
def test_gradients_reach_what_is_trained_and_nothing_else(form, architecture, size):
    model, _, names = adapted(form, architecture, size)
    run(model.train(), architecture).square().sum().backward()
    assert names
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (name in names), name
        assert parameter.grad is None or parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(("position", "placement"), [("rotary", "pre"), ("learned", "post"), ("alibi", "pre")])
@pytest.mark.parametrize("form", FORMS)
def test_cached_decoding_equals_the_full_pass(form, position, placement):
    model, _, _ = adapted(form, "decoder_only", position=position, placement=placement)
    torch.manual_seed(11)
    tokens = torch.randint(3, VOCAB, (BATCH, TARGET))
    cache = model.new_cache(2)
    parts = [model(part, cache=cache) for part in tokens.split([4, 1, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_does_not_depend_on_padding_before_it(form):
    model, _, _ = adapted(form, "decoder_only", position="learned")
    torch.manual_seed(11)
    tokens = torch.randint(3, VOCAB, (1, 5))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    valid = torch.tensor([[False] * 3 + [True] * 5])
    cache = model.new_cache(8)
    positions = positions_of(valid)
    first = model(padded[:, :6], valid=valid[:, :6], positions=positions[:, :6], cache=cache)
    rest = model(padded[:, 6:], valid=valid, positions=positions[:, 6:], cache=cache)
    found = torch.cat([first, rest], dim=1)[:, 3:]
    torch.testing.assert_close(found, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_source_does_not_depend_on_padding_behind_it(form):
    model, _, _ = adapted(form, "encoder_decoder", position="sinusoidal")
    torch.manual_seed(11)
    source, target = torch.randint(3, VOCAB, (1, SOURCE)), torch.randint(3, VOCAB, (1, TARGET))
    padded = torch.cat([source, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    valid = torch.tensor([[True] * SOURCE + [False] * 4])
    found = model(padded, target, source_valid=valid)
    torch.testing.assert_close(found, model(source, target), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "lora", "targets": ["quary"]}, "no linear map is called 'quary'; did you mean 'query'?"),
        ({"kind": "lora", "targets": []}, "adapter.targets is empty"),
        ({"kind": "lora", "targets": ["target_embedding"]}, "no float32 table target_embedding"),
        ({"kind": "lora", "magnitude": True, "int8": True}, "set adapter.int8=false"),
        ({"kind": "layers", "last": 3}, "adapter.last is 3, but decoder has 2 layers"),
        ({"kind": "prefix", "attentions": ["encoder"]}, "this model has no encoder; it has decoder"),
        ({"kind": "prefix", "length": 44}, "leaves none of the model's 44 positions"),
        ({"kind": "prompt", "length": 50}, "leaves none of the model's 44 positions"),
        ({"kind": "lore"}, "unknown adapter 'lore'; did you mean 'lora'?"),
    ],
)
def test_mistakes_are_named(given, said):
    from heedful.adapters import AdapterConfig, install

    with pytest.raises(ValueError, match=said):
        install(AdapterConfig.model_validate(given), base("decoder_only"))


def test_int8_stays_close_and_lets_gradients_through():
    from heedful.adapters import AdapterConfig, install
    from tests.adapters.models import shaken

    model = base("decoder_only", "kernels")
    plain = run(model, "decoder_only")
    names = install(AdapterConfig.model_validate({"kind": "lora", "targets": ["all"], "int8": True}), model)
    assert not any("query_key_value.weight" in name for name in model.state_dict())
    assert 0 < (run(model, "decoder_only") - plain).abs().max() < 0.1 * plain.abs().max()
    run(shaken(model, names), "decoder_only").square().sum().backward()
    assert all((parameter.grad is not None) == (name in names) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_the_weights_shown_beside_a_prefix_are_those_that_are_used(position):
    from heedful.adapters.prefix import PrefixSoftmax
    from heedful.model.attention.reference import share

    model, _, _ = adapted("prefix", "decoder_only", position=position)
    seen = []

    def look(mix, inputs, options, output):
        query, key, value = inputs
        seen.append((mix.weights(query, key, sight=options["sight"]) @ share(value, query.shape[1]), output))

    for module in model.modules():
        if isinstance(module, PrefixSoftmax):
            torch.nn.init.zeros_(module.prefix.value)  # so that only the text's keys count in the output
            module.register_forward_hook(look, with_kwargs=True)
    run(model, "decoder_only")
    assert len(seen) == 2
    for expected, output in seen:
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
