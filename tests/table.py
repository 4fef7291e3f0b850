"""A stepper without a model, small enough to try everything."""

import itertools

import torch

EOS, BOS, VOCAB = 0, 1, 5


class TableStepper:
    """Next-token probabilities looked up by what was written: no model, any distribution."""

    def __init__(self, seed, sentences, *, vocab=VOCAB, peaked=1.5):
        self.seed, self.vocab, self.peaked = seed, vocab, peaked
        self.rows = [(sentence, ()) for sentence in range(sentences)]

    def advance(self, tokens):
        self.rows = [(s, (*past, token)) for (s, past), token in zip(self.rows, tokens.tolist(), strict=True)]
        return torch.stack([self.log_probs(*row) for row in self.rows])

    def log_probs(self, sentence, past):
        generator = torch.Generator().manual_seed(hash((self.seed, sentence, past)) % 2**31)
        return (torch.randn(self.vocab, generator=generator) * self.peaked).log_softmax(-1)

    def select(self, rows, sentences=None):
        self.rows = [self.rows[row] for row in rows.tolist()]


def everything(stepper, limit, config, sentence=0):
    """Every text that ends within the limit or is cut off by it, best first."""
    found = []
    for length in range(limit):
        for words in itertools.product(range(1, stepper.vocab), repeat=length):
            total, past = 0.0, (BOS,)
            for word in words:
                total += float(stepper.log_probs(sentence, past)[word])
                past = (*past, word)
            ends = [EOS] if length < limit - 1 else range(stepper.vocab)
            for end in ends:
                whole = total + float(stepper.log_probs(sentence, past)[end])
                text = list(words) if end == EOS else [*words, end]
                found.append((config.rank(whole, length + 1), text))
    return sorted(found, key=lambda pair: -pair[0])
