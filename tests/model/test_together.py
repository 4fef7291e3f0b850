"""Parts that were written apart, used together: stacks, attentions, memories, precision, int8, folders, recipes."""

import pytest
import torch

from heedful.exchange.hugging_face import load, save
from heedful.families import preset
from heedful.families.reformer import reformer
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.create import create
from heedful.model.int8 import quantize_int8
from heedful.training.optimizer import build_optimizer
from heedful.training.recipe import TrainingConfig, read_recipe


def writer(width=16, **stack):
    attention = {"heads": 2, **stack.pop("attention", {})}
    decoder = {"layers": 2, "feedforward": {"hidden": 24}, "dropout": 0.0, "attention": attention, **stack}
    torch.manual_seed(1)
    return create(DecoderOnlyConfig(vocab=23, width=width, decoder=decoder)).eval()


def test_a_reformer_folder_keeps_its_directions(tmp_path):
    torch.manual_seed(3)
    model = create(reformer(width=16, layers=1, heads=2, head=8, hidden=16, length=256)).eval()
    save(model, tmp_path, "reformer")
    text = torch.randint(0, model.vocab, (1, 200))
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path).model.eval()(text), model(text))


def test_a_variation_of_a_stack_keeps_the_sizes_of_the_recipe():
    plain, named = read_recipe("tiny").model.encoder, read_recipe("tiny", ["model.encoder=reversible"]).model.encoder
    assert (named.kind, named.placement) == ("reversible", "pre")
    assert (named.layers, named.attention, named.feedforward) == (plain.layers, plain.attention, plain.feedforward)
    other = read_recipe("tiny", ["model.encoder.kind=reversible", "model.encoder.layers=2"]).model.encoder
    assert (other.kind, other.layers, other.attention) == ("reversible", 2, plain.attention)
    assert (
        read_recipe("tiny", ["model.encoder=recurrent"]).model.encoder.layers == 2
    )  # of another kind: its own default


def test_transformer_xl_runs_in_int8():
    model = writer(width=64, position="none", attention={"mix": "transformer_xl"})
    text = torch.randint(0, 23, (2, 9))
    with torch.no_grad():
        exact = model(text)
        quantize_int8(model)
        assert (model(text) - exact).abs().max() < 0.05 * exact.abs().max()


def test_biases_of_transformer_xl_are_not_decayed():
    model = writer(position="none", attention={"mix": "transformer_xl"})
    decayed, spared = (
        group["params"] for group in build_optimizer(TrainingConfig(weight_decay=0.1), model).param_groups
    )
    mix = model.decoder.layers[0].attention.mix
    assert any(one is mix.content for one in spared) and not any(one is mix.place for one in decayed)


@pytest.mark.parametrize("position", ["relative", "relative_bias", "alibi", "rotary"])
def test_flash_runs_in_bfloat16_with_every_kind_of_position(position):
    model = writer(position=position, attention={"mix": "flash"}).train()
    text = torch.randint(0, 23, (2, 150))
    exact = model(text)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(text)
        rough.float().square().mean().backward()
    assert (rough.float() - exact).norm() < 0.1 * exact.norm()


def test_a_memory_does_not_use_up_the_length_of_a_model():
    model = writer(position="none", length=16, attention={"mix": "transformer_xl"})
    text = torch.randint(0, 23, (1, 40))
    with torch.no_grad():
        kept, states = model.new_memory(8, states=False), model.new_memory(8)
        for segment in text.split(8, dim=1):
            torch.testing.assert_close(model(segment, cache=kept), model(segment, cache=states), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mix", ["additive", "multiplicative"])
def test_scores_that_are_no_products_do_not_look_at_earlier_segments(mix):
    changes = ["model.decoder.position=rotary", f"model.decoder.attention.mix={mix}", "task.windows=segments"]
    with pytest.raises(ValueError, match="needs an attention that supports recurrence"):
        read_recipe("char-gpt", [*changes, "task.memory=8"])


def test_mistakes_are_found_when_a_recipe_is_read():
    chunks = ["model.decoder.attention.mix={kind: lsh, sees: chunk}", "model.decoder.attention.dropout=0"]
    with pytest.raises(ValueError, match="needs an attention that supports segments"):
        read_recipe("char-gpt", [*chunks, "task.windows=documents"])
    with pytest.raises(ValueError, match="no layers that can be recomputed; set training.recompute=false"):
        read_recipe("tiny", ["model.encoder=reversible", "model.decoder=reversible", "training.recompute=true"])
    with pytest.raises(ValueError, match="the model learns 64 positions, but texts may have 257 tokens"):
        read_recipe("tiny", ["model.encoder.attention.mix={kind: linformer, length: 64}"])


def test_a_decoder_that_attends_to_so_many_source_tokens_limits_the_source():
    cross = {"heads": 2, "mix": {"kind": "linformer", "length": 32, "rank": 4}}
    small = {"layers": 1, "attention": {"heads": 2}, "feedforward": {"hidden": 8}}
    config = EncoderDecoderConfig(vocab=11, width=8, encoder=small, decoder={**small, "cross": cross})
    assert config.limits() == {"encoder": 32} and create(config).source_limit == 32


def test_global_queries_start_as_small_as_the_others():
    stack = {"layers": 1, "attention": {"heads": 4, "mix": "longformer", "window": 4, "scaled": False}}
    model = create(EncoderDecoderConfig(vocab=11, width=64, encoder=stack), scheme="t5")
    attention = model.encoder.layers[0].attention
    named = dict(zip(attention.names, attention.query_key_value.part_weights(), strict=True))
    sizes = {name: float(weight.detach().std()) for name, weight in named.items()}
    assert sizes["query_global"] == pytest.approx(sizes["query"], rel=0.2)


def test_presets_are_still_what_they_were():
    assert preset("transformer-xl-12").decoder.supports >= {"recurrence", "causal"}
