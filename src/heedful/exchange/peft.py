"""Adapters in the layout of PEFT: adapter_config.json and adapter_model.safetensors, in and out.

    ours                                          PEFT's
    ...query_key_value.lora.query.a (rank in)     base_model.model.<its module>.lora_A.weight
    ...query_key_value.lora.query.b (out rank)    base_model.model.<its module>.lora_B.weight
    ...mix.prefix.key, value (length width)       prompt_embeddings (length, layers x 2 x width)
    decoder.prompt (length width)                 prompt_embeddings (length, width)

Where their module is one of our parts and more (GPT-2's c_attn), its rank is the sum of ours: the rows of B are zero
where a part is not concerned.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.adapters import AdapterConfig
from heedful.adapters.lora import TABLES, LoraConfig, LoraTokens, Updates
from heedful.adapters.prefix import PrefixConfig, PrefixSoftmax
from heedful.adapters.prompt import PromptConfig
from heedful.bounded import header, read_object, refuse_infinite
from heedful.exchange.hugging_face import family_for
from heedful.families import Names, family, their_names
from heedful.files import in_place, write_text
from heedful.model.architecture import LanguageModel, Model, SequenceToSequence
from heedful.model.create import layout
from heedful.model.linear import FusedLinear, Linear
from heedful.model.multihead import SelfAttention

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
ROOT = "base_model.model."
TASKS = {LanguageModel: "CAUSAL_LM", SequenceToSequence: "SEQ_2_SEQ_LM"}
State = dict[str, Tensor]


def is_peft(folder: Path) -> bool:
    return (folder / SETTINGS).is_file()


def write(model: Model, adapter: AdapterConfig, trained: Sequence[str], folder: Path, *, base: str) -> None:
    """Write the adapter of a model, which is beside its base (`trained`: the names of its weights), for PEFT. `base`:
    the folder of the base in transformers' layout."""
    names = _names(model)
    if isinstance(adapter, LoraConfig):
        settings, tensors = _lora_out(model, adapter, names)
    elif isinstance(adapter, PrefixConfig):
        settings, tensors = _prefix_out(model, adapter)
    elif isinstance(adapter, PromptConfig):
        settings, tensors = _prompt_out(model)
    else:
        raise ValueError(f"PEFT has no adapter {adapter.kind}; write the merged model: heedful merge")
    heads = {ours: their_names(ours, names) for ours in trained if ours.partition(".")[0] in model.heads_named}
    weights = dict(model.named_parameters())
    for ours, theirs in heads.items():
        if len(theirs) != 1:
            raise ValueError(f"{ours} has no equivalent in transformers; write the merged model: heedful merge")
        tensors[ROOT + theirs[0]] = weights[ours].detach().clone()
    if heads:
        settings["modules_to_save"] = sorted({theirs[0].split(".")[0] for theirs in heads.values()})
    task = next((name for kind, name in TASKS.items() if isinstance(model, kind)), "FEATURE_EXTRACTION")
    settings = {"base_model_name_or_path": base, "task_type": task, "inference_mode": True, **settings}
    folder.mkdir(parents=True, exist_ok=True)
    with in_place(folder / WEIGHTS) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata={"format": "pt"})
    write_text(folder / SETTINGS, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def read(folder: Path, model: Model) -> tuple[AdapterConfig, State]:
    """The adapter of a folder of PEFT's for a base (without adapter), and its weights under our names."""
    settings = read_object(folder / SETTINGS)
    held = header(folder / WEIGHTS)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    refuse_infinite(tensors.items(), folder / WEIGHTS)
    kind = str(settings.get("peft_type"))
    names = _names(model)
    if kind == "LORA":
        found = _lora_in(settings, tensors, model, names, folder)
    elif kind in ("PREFIX_TUNING", "PROMPT_TUNING"):
        if "prompt_embeddings" not in held:
            raise ValueError(f"{folder / WEIGHTS} has no prompt_embeddings")
        table = tensors.pop("prompt_embeddings")
        found = _prefix_in(table, model, folder) if kind == "PREFIX_TUNING" else _prompt_in(table, model, folder)
    else:
        raise ValueError(f"{folder}: peft_type {kind} is not supported; known: LORA, PREFIX_TUNING, PROMPT_TUNING")
    heads = {theirs: ours for ours, _ in model.named_parameters() if len(named := their_names(ours, names)) == 1
             for theirs in named if ours.partition(".")[0] in model.heads_named}  # fmt: skip
    left = []
    for name, tensor in tensors.items():
        own = heads.get(name.removeprefix(ROOT).replace(".modules_to_save", ""))
        if own is None:
            left.append(name)
        else:
            found[1][own] = tensor
    if left:
        raise ValueError(f"{folder}: {left[0]} fits nothing in the base (and {len(left) - 1} more like it)")
    return found


def _names(model: Model) -> Names:
    known = family(family_for(layout(model.config)))
    if known.convert is not None and known.convert(model.config, {})[0] != model.config:
        raise ValueError(
            "transformers orders the features of this model otherwise, so PEFT cannot use its adapter; write the whole "
            "model: heedful merge, heedful export"
        )
    return known.names(model.config)


def _lora_out(model: Model, adapter: LoraConfig, names: Names) -> tuple[dict[str, Any], State]:
    tensors: State = {}
    ranks: dict[str, int] = {}
    for name, module in model.named_modules():
        updates = getattr(module, "lora", None)
        if isinstance(module, LoraTokens):
            if getattr(model.config, "tie", "none") != "none":
                raise ValueError("PEFT changes a tied table at one of its uses only; write the merged model instead")
            (theirs,) = their_names(f"{name}.weight", names)
            theirs = theirs.removesuffix(".weight")
            tensors[f"{ROOT}{theirs}.lora_embedding_A"] = module.lora.b.detach().T.clone()
            tensors[f"{ROOT}{theirs}.lora_embedding_B"] = module.lora.a.detach().T.clone()
            ranks[theirs] = adapter.rank
        elif isinstance(updates, Updates):
            theirs_all = [one.removesuffix(".weight") for one in their_names(f"{name}.weight", names)]
            parts: tuple[int, ...] = getattr(module, "parts", None) or (module.out_features,)
            if len(theirs_all) == len(parts):
                for place, _, update in updates.each():
                    _put(tensors, theirs_all[place], update.a, update.b, update.m)
                    ranks[theirs_all[place]] = adapter.rank
            else:
                _put(tensors, theirs_all[0], *_joined(updates, sum(parts)))
                ranks[theirs_all[0]] = adapter.rank * len(updates.each())
    different = {name: rank for name, rank in ranks.items() if rank != adapter.rank}
    factor = adapter.alpha / adapter.rank
    return {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.root,
        "use_dora": adapter.magnitude,
        "bias": "none",
        "target_modules": sorted(ranks),
        "rank_pattern": different,
        "alpha_pattern": {
            name: adapter.scale * rank**0.5 if adapter.root else factor * rank for name, rank in different.items()
        },
        "fan_in_fan_out": family(family_for(layout(model.config))).transposed,
    }, tensors


def _put(tensors: State, module: str, a: Tensor, b: Tensor, m: Tensor | None) -> None:
    tensors[f"{ROOT}{module}.lora_A.weight"] = a.detach().clone()
    tensors[f"{ROOT}{module}.lora_B.weight"] = b.detach().clone()
    if m is not None:
        tensors[f"{ROOT}{module}.lora_magnitude_vector"] = m.detach().clone()


def _joined(updates: Updates, outputs: int) -> tuple[Tensor, Tensor, None]:
    """The updates of several parts as one of the whole matrix."""
    each = updates.each()
    if any(update.m is not None for _, _, update in each):
        raise ValueError("their module is several of our parts, with one length for all rows; write the merged model")
    a = torch.cat([update.a.detach() for _, _, update in each])
    b = a.new_zeros(outputs, len(a))
    for number, (_, rows, update) in enumerate(each):
        rank = update.b.shape[1]
        b[rows, number * rank : (number + 1) * rank] = update.b.detach()
    return a, b, None


def _lora_in(
    settings: Mapping[str, Any], tensors: State, model: Model, names: Names, folder: Path
) -> tuple[AdapterConfig, State]:
    rank, alpha, root = settings.get("r"), settings.get("lora_alpha"), bool(settings.get("use_rslora"))
    if settings.get("bias", "none") != "none":
        raise ValueError(f"{folder}: trained biases beside LoRA are not supported")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        raise ValueError(f"{folder / SETTINGS}: r and lora_alpha must be numbers, not {rank!r} and {alpha!r}")
    ranks = {len(tensor) for name, tensor in tensors.items() if name.endswith(".lora_A.weight")}
    adapter = LoraConfig(
        rank=max(ranks, default=rank),
        alpha=alpha * max(ranks, default=rank) / rank if not root else alpha * (max(ranks, default=rank) / rank) ** 0.5,
        root=root,
        magnitude=bool(settings.get("use_dora")),
        dropout=settings.get("lora_dropout") or 0.0,
    )
    state: State = {}
    targets: list[str] = []
    used: set[str] = set()
    for name, module in model.named_modules():
        if type(module) not in (Linear, FusedLinear):
            continue
        for place, word in enumerate(getattr(module, "names", None) or (name.rpartition(".")[2],)):
            theirs, rows = _their_part(name, module, place, names)
            if f"{ROOT}{theirs}.lora_A.weight" not in tensors:
                continue
            a, b = (_pick(tensors, used, f"{theirs}.lora_{letter}.weight") for letter in "AB")
            own = _patterned(settings, theirs, alpha) / (len(a) ** 0.5 if root else len(a))
            more = adapter.rank - len(a)
            where = f"{name}.lora.{word}"
            state[f"{where}.a"] = F.pad(a, (0, 0, 0, more))
            state[f"{where}.b"] = F.pad(b[rows], (0, more)) * (own / adapter.scale)
            if adapter.magnitude:
                state[f"{where}.m"] = _pick(tensors, used, f"{theirs}.lora_magnitude_vector")[rows]
            targets.append(f"{name.rpartition('.')[0]}.{word}")
    for name in TABLES:
        theirs = "".join(their_names(f"{name}.weight", names)).removesuffix(".weight")
        if f"{ROOT}{theirs}.lora_embedding_A" in tensors:
            if getattr(model.config, "tie", "none") != "none":
                raise ValueError(f"{folder} changes a tied table at one of its uses only, which is not supported")
            state[f"{name}.lora.b"] = _pick(tensors, used, f"{theirs}.lora_embedding_A").T.contiguous()
            state[f"{name}.lora.a"] = _pick(tensors, used, f"{theirs}.lora_embedding_B").T.contiguous()
            copy = f"{ROOT}{theirs}.base_layer.weight"  # PEFT repeats the table of the base
            if copy in tensors and torch.equal(tensors[copy], model.get_parameter(f"{name}.weight")):
                used.add(copy)
            targets.append(name)
    if not targets:
        raise ValueError(f"{folder}: the base has none of its modules, such as {next(iter(tensors), 'any')}")
    for name in used:
        del tensors[name]
    return adapter.model_copy(update={"targets": tuple(targets)}), state


def _their_part(name: str, module: Linear | FusedLinear, place: int, names: Names) -> tuple[str, slice]:
    """Their module for a part of ours, and its rows there."""
    theirs = [one.removesuffix(".weight") for one in their_names(f"{name}.weight", names)]
    parts: tuple[int, ...] = getattr(module, "parts", None) or (module.out_features,)
    if len(theirs) == len(parts):
        return theirs[place], slice(None)
    return (theirs or [""])[0], slice(sum(parts[:place]), sum(parts[: place + 1]))


def _patterned(settings: Mapping[str, Any], module: str, usual: float) -> float:
    """The alpha of a module: `alpha_pattern` names some by the last words of their names."""
    for words, alpha in (settings.get("alpha_pattern") or {}).items():
        if f".{module}".endswith(f".{words.lstrip('^')}"):
            return float(alpha)
    return usual


def _pick(tensors: State, used: set[str], name: str) -> Tensor:
    used.add(ROOT + name)
    if ROOT + name not in tensors:
        raise ValueError(f"{WEIGHTS} has no {ROOT}{name}")
    return tensors[ROOT + name]


def _prefix_out(model: Model, adapter: PrefixConfig) -> tuple[dict[str, Any], State]:
    """The table that the network gives, if there is one: PEFT's files have no network either."""
    mixes = [module for module in model.modules() if isinstance(module, PrefixSoftmax)]
    if adapter.attentions not in ((), ("decoder",)) or not adapter.shift:
        raise ValueError("PEFT's prefixes are the decoder's, with shifted positions; write the folder for Heedful only")
    _refuse_bias(model)
    order = _layers(model, len(mixes))
    if len(set(order)) < len(order):
        raise ValueError(f"PEFT gives the same prefix to several decoder layers where their number is even, such as "
                         f"{len(order)}; write the folder for Heedful only")  # fmt: skip
    with torch.no_grad():
        pairs = [torch.stack(mixes[order.index(place)].prefix(), dim=1) for place in range(len(mixes))]
    table = torch.cat(pairs, dim=1)  # length (layers x 2) width
    length, count, width = table.shape
    settings = {
        "peft_type": "PREFIX_TUNING",
        "num_virtual_tokens": length,
        "num_layers": count // 2,
        "num_attention_heads": width // mixes[0].head,
        "token_dim": width,
        "num_transformer_submodules": 2 if isinstance(model, SequenceToSequence) else 1,
        "prefix_projection": False,
        "encoder_hidden_size": width,
    }
    return settings, {"prompt_embeddings": table.flatten(1)}


def _prefix_in(table: Tensor, model: Model, folder: Path) -> tuple[AdapterConfig, State]:
    _refuse_bias(model)
    names = [
        name for name, module in model.get_submodule("decoder").named_modules() if isinstance(module, SelfAttention)
    ]
    if not names or table.dim() != 2 or table.shape[1] % (2 * len(names)):
        raise ValueError(f"{folder}: prompt_embeddings of {list(table.shape)} do not fit {len(names)} layers")
    halves = table.unflatten(1, (2 * len(names), -1)).unbind(1)
    state = {}
    for number, name in zip(_layers(model, len(names)), names, strict=True):
        for place, own in enumerate(("key", "value")):
            state[f"decoder.{name}.mix.prefix.{own}"] = halves[2 * number + place].contiguous()
    return PrefixConfig(length=len(table)), state


def _layers(model: Model, count: int) -> list[int]:
    """Which pair of PEFT's table each layer takes. For encoder-decoders it hands out two pairs a layer, one for
    attention to the source that is then dropped, from the table twice over."""
    return [(2 * layer) % count for layer in range(count)] if isinstance(model, SequenceToSequence) else [*range(count)]


def _refuse_bias(model: Model) -> None:
    position = getattr(model.get_submodule("decoder"), "position", None)
    if position is not None and type(position).__module__.rpartition(".")[2] in ("alibi", "relative_bias", "relative"):
        raise ValueError(
            "PEFT adds the bias of positions to a prefix, too, and ours does not: it would mean another model"
        )


def _prompt_out(model: Model) -> tuple[dict[str, Any], State]:
    if not isinstance(model, LanguageModel):
        raise ValueError("PEFT's prompts stand before decoders, too, or have token types; write the folder for Heedful "
                         "only")  # fmt: skip
    table = model.get_parameter("decoder.prompt").detach().clone()
    settings = {
        "peft_type": "PROMPT_TUNING",
        "num_virtual_tokens": len(table),
        "token_dim": table.shape[1],
        "num_layers": model.config.decoder.layers,  # type: ignore[attr-defined]
        "num_attention_heads": model.config.decoder.attention.heads,  # type: ignore[attr-defined]
        "num_transformer_submodules": 1,
        "prompt_tuning_init": "RANDOM",
    }
    return settings, {"prompt_embeddings": table}


def _prompt_in(table: Tensor, model: Model, folder: Path) -> tuple[AdapterConfig, State]:
    if not isinstance(model, LanguageModel) or table.dim() != 2:
        raise ValueError(f"{folder}: only prompts of language models can be opened")
    return PromptConfig(length=len(table)), {"decoder.prompt": table}
