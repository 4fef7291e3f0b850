"""Training speed, compared with other toolkits on the same batches. Run `sh peers.sh` first.

    python benchmarks/training.py                          all peers, tiny and base, as tables
    python benchmarks/training.py --sizes tiny --peers heedful torch
    python benchmarks/training.py --curve                  our losses, step by step, compared with transformers'

A step is forward, backward and torch's fused Adam, float32, two threads, dropout 0.1, label smoothing 0.1. Each peer
runs in its own process and environment, with its own model and loss. The figure is real target tokens per second,
without padding, over the same batches; the best round, and all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = {
    "heedful": "heedful",
    "torch": "huggingface",
    "x-transformers": "huggingface",
    "marian": "huggingface",
    "opennmt": "opennmt",
    "sockeye": "sockeye",
    "joeynmt": "joeynmt",
}
DROPOUT, SMOOTHING = 0.1, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base"], choices=["tiny", "base"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--turns", type=int, default=2, help="turns of each peer")
    parser.add_argument("--rounds", type=int, default=2, help="rounds per turn")
    parser.add_argument("--steps", type=int, help="batches per round (default: 6 for tiny, 2 for base)")
    parser.add_argument("--curve", action="store_true", help="compare losses instead of speed")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(*options.inside)
    elif options.curve:
        curve()
    else:
        for size in options.sizes:
            table(size, options.peers, options.steps or (6 if size == "tiny" else 2), options.rounds, options.turns)


def table(size: str, peers: list[str], steps: int, rounds: int, turns: int) -> None:
    """Peers take turns: the load of a shared machine changes from minute to minute."""
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    last: dict[str, dict[str, Any]] = {}
    limit = 0.0  # operations per second, the highest GEMM rate measured
    for _ in range(turns):
        for peer in peers:
            found = last[peer] = run(peer, "speed", size, peer, str(steps), str(rounds))
            rates[peer] += [found["tokens"] / seconds for seconds in found["seconds"]]
            limit = max(limit, found["gemm"])
            print(size, peer, f"{max(rates[peer]):,.0f}", file=sys.stderr)
    print(f"\n{size}: training\n")
    print("| peer | target tokens/s | all rounds | share of GEMM rate | peak memory, MB | last loss |")
    print("|---|---:|---|---:|---:|---:|")
    for peer in peers:
        shown = " ".join(f"{rate:,.0f}" for rate in rates[peer])
        memory, loss = last[peer]["memory"] / 1e6, last[peer]["loss"]
        share = max(rates[peer]) * last[peer]["flops"] / last[peer]["tokens"] / limit
        print(f"| {peer} | {max(rates[peer]):,.0f} | {shown} | {share:.0%} | {memory:,.0f} | {loss:.3f} |")
    others = [peer for peer in peers if peer != "heedful"]
    if "heedful" in peers and others:
        fastest = max(others, key=lambda peer: max(rates[peer]))
        ratio = max(rates["heedful"]) / max(rates[fastest])
        print(f"\nheedful: {ratio:.2f} times the fastest peer, {fastest}", flush=True)


def curve() -> None:
    """The same weights, the same batches, no dropout: faster code must compute the same function."""
    from decoding import prepare

    prepare("tiny")
    ours, theirs = (run(peer, "losses", "tiny", peer, "12") for peer in ("heedful", "marian"))
    print("| step | heedful | transformers |\n|---:|---:|---:|")
    for step, (one, other) in enumerate(zip(ours["losses"], theirs["losses"], strict=True), start=1):
        print(f"| {step} | {one:.5f} | {other:.5f} |")
    apart = max(abs(one - other) for one, other in zip(ours["losses"], theirs["losses"], strict=True))
    print(f"\nat most {apart:.1e} apart")


def run(peer: str, *arguments: str) -> dict[str, Any]:
    python = HERE / ".peers" / PEERS[peer] / "bin" / "python"
    if not python.exists():
        sys.exit(f"{python} does not exist; run: sh benchmarks/peers.sh")
    command = [str(python), __file__, "--inside", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def inside(function: str, size: str, peer: str, steps: str, rounds: str = "1") -> None:
    import logging

    import torch

    logging.disable(logging.INFO)
    torch.set_num_threads(2)
    if function == "speed":
        speed(size, peer, int(steps), int(rounds))
    else:
        losses(size, peer, int(steps))


def speed(size: str, peer: str, steps: int, rounds: int) -> None:
    import torch
    from work import SIZES, batches, gemm_rate, peak_memory, say

    torch.manual_seed(1)
    work = batches(SIZES[size], steps)
    model, loss_of = BUILD[peer](SIZES[size], DROPOUT)
    model.train()
    optimizer = adam_of(peer)(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    loss = 0.0

    def step(batch: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(work[0])
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for batch in work:
            loss = step(batch)
        seconds.append(time.perf_counter() - began)
    memory = peak_memory()
    flops = sum(operations(SIZES[size], batch) for batch in work)
    tokens = sum(batch.tokens for batch in work)
    say(seconds=seconds, tokens=tokens, memory=memory, loss=float(loss), flops=flops, gemm=gemm_rate())


def adam_of(peer: str) -> Any:
    """torch's fused Adam for all; heedful's is the same without an import that torch's triggers."""
    if peer == "heedful":
        from heedful.training.optimizer import Adam
    else:
        from torch.optim import Adam
    return Adam


def operations(size: Any, batch: Any) -> float:
    """Operations in matrix products with weights, for real tokens only: the minimum. Backward is twice forward."""
    from work import PAD, VOCAB

    source, target = int((batch.source != PAD).sum()), batch.tokens
    attention, inner = 4 * size.width**2, 2 * size.width * size.hidden
    encoder = size.layers * (attention + inner) * source
    decoder = size.layers * ((attention + size.width**2 * 2 + inner) * target + 2 * size.width**2 * source)
    return 3 * 2 * (encoder + decoder + VOCAB * size.width * target)


def losses(size: str, peer: str, steps: int) -> None:
    import torch
    from decoding import folder
    from work import SIZES, batches, say

    if peer == "heedful":
        from heedful.exchange.hugging_face import load

        model: Any = load(folder(size, "marian")).model
        loss_of = heedful_loss(model)
    else:
        from transformers import MarianMTModel

        model = MarianMTModel.from_pretrained(folder(size, "marian"), dropout=0.0)
        loss_of = marian_loss(model)
    model.train()
    parameters = [parameter for name, parameter in model.named_parameters() if name != "head.bias"]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, betas=(0.9, 0.98), eps=1e-9)
    found = []
    for batch in batches(SIZES[size], steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    say(losses=found)


Built = tuple[Any, Callable[[Any], Any]]


def heedful(size: Any, dropout: float) -> Built:
    from work import VOCAB

    from heedful.families.vaswani import vaswani
    from heedful.memory import keep_freed_memory
    from heedful.model.create import create

    keep_freed_memory()  # as the command does
    config = vaswani(
        vocab=VOCAB, width=size.width, hidden=size.hidden, heads=size.heads, layers=size.layers, dropout=dropout
    )
    model = create(config)
    return model, heedful_loss(model)


def heedful_loss(model: Any) -> Callable[[Any], Any]:
    from work import PAD

    from heedful.objectives import vocabulary_cross_entropy

    def loss(batch: Any) -> Any:  # as in tasks/translation.py
        memory = model.encode(batch.source, valid=batch.source != PAD)
        real = batch.target_out != PAD
        states = model.decode(batch.target_in, memory)[real]
        found = vocabulary_cross_entropy(*model.last_linear(states), batch.target_out[real], smoothing=SMOOTHING)
        return found.total / found.count

    return loss


def smoothed(logits: Any, wanted: Any) -> Any:
    import torch.nn.functional as F
    from work import PAD, VOCAB

    return F.cross_entropy(logits.reshape(-1, VOCAB), wanted.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


def torch_(size: Any, dropout: float) -> Built:
    import torch
    from torch import nn
    from work import PAD, VOCAB

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB, size.width)
            nn.init.normal_(self.table.weight, std=size.width**-0.5)
            self.places = nn.Parameter(torch.randn(256, size.width) * 0.02, requires_grad=False)
            self.dropout = nn.Dropout(dropout)
            self.core = nn.Transformer(
                size.width, size.heads, size.layers, size.layers, size.hidden, dropout, batch_first=True
            )

        def embed(self, tokens: Any) -> Any:
            return self.dropout(self.table(tokens) * size.width**0.5 + self.places[: tokens.shape[1]])

        def forward(self, batch: Any) -> Any:
            hidden, later = batch.source == PAD, batch.target_in.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(later)
            states = self.core(
                self.embed(batch.source), self.embed(batch.target_in), tgt_mask=mask, tgt_is_causal=True,
                src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
            )  # fmt: skip
            return states @ self.table.weight.T

    model = Model()
    return model, lambda batch: smoothed(model(batch), batch.target_out)


def x_transformers(size: Any, dropout: float) -> Built:
    import torch
    from torch import nn
    from work import PAD, VOCAB
    from x_transformers import Decoder, Encoder, TransformerWrapper

    more = {"ff_mult": size.hidden / size.width, "attn_dropout": 0.0, "ff_dropout": dropout, "attn_flash": True,
            "attn_dim_head": size.width // size.heads}  # fmt: skip
    read, write = (
        TransformerWrapper(
            num_tokens=VOCAB,
            max_seq_len=256,
            emb_dropout=dropout,
            tie_embedding=kind is Decoder,
            return_only_embed=kind is Encoder,
            attn_layers=kind(dim=size.width, depth=size.layers, heads=size.heads, **cross, **more),
        )
        for kind, cross in ((Encoder, {}), (Decoder, {"cross_attend": True}))
    )
    write.token_emb = read.token_emb
    write.to_logits = lambda x: x @ read.token_emb.emb.weight.t()
    model = nn.ModuleDict({"read": read, "write": write})

    def loss(batch: Any) -> Any:
        valid = batch.source != PAD
        states = read(batch.source, mask=valid)
        return smoothed(write(batch.target_in, context=states, context_mask=valid), batch.target_out)

    assert isinstance(model, torch.nn.Module)
    return model, loss


def marian(size: Any, dropout: float) -> Built:
    from transformers import MarianConfig, MarianMTModel
    from work import EOS, PAD, VOCAB

    config = MarianConfig(
        vocab_size=VOCAB, d_model=size.width, encoder_layers=size.layers, decoder_layers=size.layers,
        encoder_ffn_dim=size.hidden, decoder_ffn_dim=size.hidden, encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads, dropout=dropout, attention_dropout=0.0, activation_dropout=0.0,
        activation_function="relu", scale_embedding=True, pad_token_id=PAD, eos_token_id=EOS,
        decoder_start_token_id=PAD, max_position_embeddings=256, attn_implementation="sdpa",
    )  # fmt: skip
    model = MarianMTModel(config)
    return model, marian_loss(model)


def marian_loss(model: Any) -> Callable[[Any], Any]:
    from work import PAD

    def loss(batch: Any) -> Any:
        found = model(
            input_ids=batch.source, attention_mask=(batch.source != PAD).long(), decoder_input_ids=batch.target_in,
            use_cache=False,
        )  # fmt: skip
        return smoothed(found.logits, batch.target_out)

    return loss


def opennmt(size: Any, dropout: float) -> Built:
    import torch
    from onmt.decoders.transformer import TransformerDecoder
    from onmt.encoders.transformer import TransformerEncoder
    from onmt.models import NMTModel
    from onmt.modules import Embeddings
    from torch import nn
    from work import PAD, VOCAB

    tables = [Embeddings(size.width, VOCAB, PAD, position_encoding=True, dropout=dropout) for _ in range(2)]
    tables[1].word_lut.weight = tables[0].word_lut.weight
    encoder = TransformerEncoder(
        size.layers, size.width, size.heads, size.hidden, dropout, 0.0, tables[0], 0, 0, add_qkvbias=True
    )
    decoder = TransformerDecoder(
        size.layers, size.width, size.heads, size.hidden, False, "scaled-dot-flash", dropout, 0.0, tables[1],
        0, 0, False, False, 0, 0, add_qkvbias=True,
    )  # fmt: skip
    model = NMTModel(encoder, decoder)
    model.generator = nn.Linear(size.width, VOCAB)
    for name, parameter in model.named_parameters():  # the toolkit leaves them uninitialised
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    model.generator.weight = tables[0].word_lut.weight

    def loss(batch: Any) -> Any:
        lengths = (batch.source != PAD).sum(1)
        target = torch.cat([batch.target_in, batch.target_out[:, -1:]], dim=1)  # the model drops the last token
        states, _ = model(batch.source[..., None], target[..., None], lengths)
        return smoothed(model.generator(states), batch.target_out)

    return model, loss


def sockeye(size: Any, dropout: float) -> Built:
    import torch
    from sockeye import constants as C
    from sockeye.encoder import TokensConfig
    from sockeye.loss import CrossEntropyLoss
    from sockeye.model import ModelConfig, SockeyeModel, initialize_parameters
    from sockeye.transformer import TransformerConfig
    from work import PAD, VOCAB

    table = TokensConfig(vocab_size=VOCAB, num_embed=size.width, dropout=dropout)
    stack = TransformerConfig(
        model_size=size.width, attention_heads=size.heads, feed_forward_num_hidden=size.hidden, act_type="relu",
        num_layers=size.layers, dropout_attention=0.0, dropout_act=0.0, dropout_prepost=dropout,
        positional_embedding_type="fixed", preprocess_sequence="n", postprocess_sequence="dr",
        max_seq_len_source=256, max_seq_len_target=256, depth_key_value=size.width,
    )  # fmt: skip
    model = SockeyeModel(
        ModelConfig(
            config_data=None, vocab_source_size=VOCAB, vocab_target_size=VOCAB, config_embed_source=table,
            config_embed_target=table, config_encoder=stack, config_decoder=stack,
            weight_tying_type=C.WEIGHT_TYING_SRC_TRG_SOFTMAX,
        )
    )  # fmt: skip
    model.apply(initialize_parameters)
    judge = CrossEntropyLoss(label_smoothing=SMOOTHING)

    def theirs(tokens: Any) -> Any:
        """Its padding id is 0, which is EOS here."""
        return torch.where(tokens == PAD, 0, torch.where(tokens == 0, PAD, tokens)).int()

    def loss(batch: Any) -> Any:
        lengths = (batch.source != PAD).sum(1, keepdim=True).int()
        target_lengths = (batch.target_out != PAD).sum(1, keepdim=True).int()
        found = model(theirs(batch.source)[..., None], lengths, theirs(batch.target_in)[..., None], target_lengths)
        return judge(found, {C.TARGET_LABEL_NAME: theirs(batch.target_out)})[0]

    return model, loss


def joeynmt(size: Any, dropout: float) -> Built:
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary
    from work import EOS, PAD, VOCAB

    class Words(Vocabulary):
        def __init__(self) -> None:
            self.pad_index, self.eos_index, self.bos_index, self.unk_index, self.sep_index = PAD, EOS, EOS, 1, None
            self.specials, self.lang_tags = [], []

        def __len__(self) -> int:
            return VOCAB

        def __eq__(self, other: object) -> bool:
            return True

    part = {
        "type": "transformer", "num_layers": size.layers, "num_heads": size.heads, "hidden_size": size.width,
        "ff_size": size.hidden, "dropout": dropout, "layer_norm": "post",
        "embeddings": {"embedding_dim": size.width, "scale": True, "dropout": 0.0},
    }  # fmt: skip
    words = Words()
    model = build_model({"encoder": part, "decoder": part, "tied_embeddings": True, "tied_softmax": True}, words, words)
    model.loss_function = ("crossentropy", SMOOTHING)

    def loss(batch: Any) -> Any:
        total, *_ = model(
            return_type="loss", src=batch.source, trg_input=batch.target_in, trg=batch.target_out,
            src_mask=(batch.source != PAD)[:, None], trg_mask=(batch.target_out != PAD)[:, None],
            src_length=(batch.source != PAD).sum(1),
        )  # fmt: skip
        return total / batch.tokens

    return model, loss


BUILD = {
    "heedful": heedful,
    "torch": torch_,
    "x-transformers": x_transformers,
    "marian": marian,
    "opennmt": opennmt,
    "sockeye": sockeye,
    "joeynmt": joeynmt,
}


if __name__ == "__main__":
    main()
