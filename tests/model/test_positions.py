"""Position schemes against known answers, and the contract that every file of model/position must keep."""

import math

import pytest
import torch

from heedful.config import kinds, part_config
from heedful.model.position import PositionConfig
from heedful.model.position.alibi import Alibi
from heedful.model.position.relative_bias import RelativeBiasConfig
from heedful.model.position.rotary import RotaryConfig, ScalingConfig, rotate
from heedful.model.position.sinusoidal import SinusoidalConfig

HEADS, HEAD, WIDTH = 3, 10, 14


def build(config, *, causal=False):
    torch.manual_seed(0)
    return config.build(width=WIDTH, heads=HEADS, head_width=HEAD, causal=causal)


def test_sinusoid_at_width_8_position_2_is_the_papers():
    waves = build(SinusoidalConfig()).waves(torch.tensor([[2]]), 8)
    known = [0.9093, -0.4161, 0.1987, 0.9801, 0.0200, 0.9998, 0.0020, 0.999998]
    assert torch.allclose(waves[0, 0].float(), torch.tensor(known), atol=5e-5)
    assert waves[0, 0, 7].item() == pytest.approx(0.999998, abs=5e-7)


def test_sinusoid_wavelengths_run_from_two_pi_towards_base_times_two_pi():
    """The pair's number is doubled once: `2 * i / width` with an i that already steps by two is the common mistake."""
    width = 8
    sinusoid = build(SinusoidalConfig())
    for pair in range(width // 2):
        wavelength = 2 * math.pi * 10000 ** (2 * pair / width)
        for position in (1, 5, 1000):
            waves = sinusoid.waves(torch.tensor([[position]]), width)[0, 0]
            assert waves[2 * pair].item() == pytest.approx(math.sin(2 * math.pi * position / wavelength), abs=1e-9)
            assert waves[2 * pair + 1].item() == pytest.approx(math.cos(2 * math.pi * position / wavelength), abs=1e-9)


def test_the_two_layouts_of_the_sinusoid_are_a_permutation_apart():
    positions = torch.arange(7)[None]
    interleaved = build(SinusoidalConfig()).waves(positions, WIDTH)
    halves = build(SinusoidalConfig(layout="halves")).waves(positions, WIDTH)
    assert torch.equal(torch.cat([interleaved[..., 0::2], interleaved[..., 1::2]], -1), halves)


def test_rotated_products_depend_on_the_distance_only():
    rotary = build(RotaryConfig())
    query, key = torch.randn(1, HEADS, 1, HEAD), torch.randn(1, HEADS, 1, HEAD)

    def product(i, j):
        at = [rotary.rotation(torch.tensor([[place]])) for place in (i, j)]
        return (rotate(query, at[0]) * rotate(key, at[1])).sum(-1)

    assert torch.allclose(product(3, 1), product(103, 101), atol=1e-4)
    assert not torch.allclose(product(3, 1), product(3, 2), atol=1e-3)
    assert torch.allclose(product(5, 5), (query * key).sum(-1), atol=1e-5)


def test_llama3_scaling_keeps_fast_waves_and_stretches_slow_ones():
    plain = RotaryConfig(base=500000).build(width=64, heads=1, head_width=64, causal=True)
    scaling = ScalingConfig(factor=8, original_length=8192)
    scaled = RotaryConfig(base=500000, scaling=scaling).build(width=64, heads=1, head_width=64, causal=True)
    ratio = plain.frequencies(torch.device("cpu")) / scaled.frequencies(torch.device("cpu"))
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(8)
    assert (ratio.diff() >= -1e-6).all()


def test_alibi_slopes_and_penalties():
    bias = Alibi(8).bias(torch.tensor([[4]]), torch.arange(6)[None])
    assert bias.shape == (1, 8, 1, 6)
    assert bias[0, 0, 0].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0, -0.5]  # m_1 = 1/2
    assert bias[0, 7, 0, 3].item() == -(2**-8)


def test_relative_buckets_are_exact_near_and_shared_far():
    bias = build(RelativeBiasConfig(buckets=32, max_distance=128), causal=True)
    buckets = bias.bucket(-torch.arange(300))
    assert buckets[:16].tolist() == list(range(16))
    assert (buckets.diff() >= 0).all() and buckets[127] == buckets[299] == 31
    both = build(RelativeBiasConfig(), causal=False)
    assert both.bucket(torch.tensor([3])) != both.bucket(torch.tensor([-3]))


@pytest.mark.parametrize("kind", kinds("model/position"))
@pytest.mark.parametrize("causal", [True, False])
def test_positions_of_one_row_do_not_depend_on_the_others(kind, causal):
    position = build(part_config(PositionConfig, kind)(), causal=causal)
    rows = torch.stack([torch.arange(5), torch.arange(5) + 7])
    x = torch.randn(2, 5, WIDTH)
    for row in range(2):
        alone = rows[row : row + 1]
        assert torch.allclose(position.embed(x, rows)[row], position.embed(x[row : row + 1], alone)[0])
        bias = position.bias(rows, rows)
        if bias is not None:
            assert bias.shape == (2, HEADS, 5, 5)
            assert torch.allclose(bias[row], position.bias(alone, alone)[0])


@pytest.mark.parametrize("kind", kinds("model/position"))
def test_parameters_follow_the_formula(kind):
    config = part_config(PositionConfig, kind)()
    counted = sum(parameter.numel() for parameter in build(config).parameters())
    assert counted == config.parameters(width=WIDTH, heads=HEADS, head_width=HEAD)
