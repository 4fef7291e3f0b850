"""What AdapterHub's library computes: run by test_bottleneck.py, with the folder of adapter_oracles.sh in its path.

    python adapter_oracle.py CASES.json

For each case: a folder of transformers with an adapter of this configuration, whose weights are in a file as
{layer}.{place}.{down or up}.{weight or bias}; writes the output (logits, or the states of a bare model), and the
gradients of its sum of squares.
"""

import json
import sys
from pathlib import Path

import adapters
import transformers
from adapters.methods.bottleneck import BottleneckLayer
from safetensors.torch import load_file, save_file

PLACES = {"mh_adapter": "attention", "cross_adapter": "cross", "output_adapter": "feedforward"}
NORMS = ("post_attention_layernorm", "ln_2")  # before the network, in Llama and in GPT-2


def main() -> None:
    for case in json.loads(Path(sys.argv[1]).read_text()):
        model = getattr(transformers, case["class"]).from_pretrained(case["base"]).eval()
        adapters.init(model)
        model.add_adapter("one", config=adapters.BnConfig(**case["config"]), set_active=True)
        if case["normed"]:
            read_normed(model)
        held = parameters(model)
        given = load_file(case["weights"])
        assert held.keys() == given.keys(), (sorted(held), sorted(given))
        for name, parameter in held.items():
            parameter.data.copy_(given[name])
            parameter.requires_grad_(True)
        output = model(**load_file(case["inputs"]))[0]
        output.square().sum().backward()
        found = {f"gradient.{name}": parameter.grad for name, parameter in held.items()}
        save_file({"output": output.detach().contiguous(), **found}, case["out"])


def parameters(model):
    found = {}
    for index, layer in model.base_model.iter_layers():
        for module in layer.modules():
            if isinstance(module, BottleneckLayer) and "one" in module.adapters:
                adapter, place = module.adapters["one"], PLACES[module.location_key]
                for side, linear in (("down", adapter.adapter_down[0]), ("up", adapter.adapter_up)):
                    found |= {f"{index}.{place}.{side}.{leaf}": value for leaf, value in linear.named_parameters()}
    return found


def read_normed(model) -> None:
    """Let parallel adapters of a pre-norm model read what the network reads, as He et al.'s own code does (hi_lnbefore
    0); the library gives them the residual stream."""
    for _, layer in model.base_model.iter_layers():
        (norm,) = (getattr(layer, name) for name in NORMS if hasattr(layer, name))
        adapter = layer.output_adapters.adapters["one"]
        adapter.pre_forward = lambda h, x, _, fusion_config=None, norm=norm: (norm(x), None, x)


if __name__ == "__main__":
    main()
