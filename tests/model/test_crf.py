"""The CRF beside torchcrf, and what it must never predict."""

import pytest
import torch

from heedful.model.crf import Allowed, Crf


def both(classes):
    theirs = pytest.importorskip("torchcrf").CRF(classes, batch_first=True)
    ours = Crf(classes)
    torch.manual_seed(classes)
    with torch.no_grad():
        for mine, its in ((ours.first, theirs.start_transitions), (ours.last, theirs.end_transitions),
                          (ours.transitions, theirs.transitions)):  # fmt: skip
            its.copy_(torch.randn_like(its))
            mine.copy_(its)
    return ours, theirs


@pytest.mark.parametrize(("batch", "words", "classes"), [(5, 11, 7), (3, 1, 2), (16, 32, 64)])
def test_likelihood_gradient_and_best_sequence_are_torchcrfs(batch, words, classes):
    ours, theirs = both(classes)
    scores = torch.randn(batch, words, classes) * 2
    tags = torch.randint(classes, (batch, words))
    counts = torch.randint(1, words + 1, (batch,))
    counts[0] = words
    valid = torch.arange(words) < counts[:, None]
    mine, its = (scores.clone().requires_grad_() for _ in range(2))
    found = ours.log_likelihood(mine, tags, valid)
    wanted = theirs(its, tags, mask=valid, reduction="none")
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    weights = torch.randn(batch)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-5)
    if words > 1:
        torch.testing.assert_close(ours.transitions.grad, theirs.transitions.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.first.grad, theirs.start_transitions.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.last.grad, theirs.end_transitions.grad, rtol=1e-4, atol=1e-5)
    best = ours.decode(scores, valid)
    assert [row[:count].tolist() for row, count in zip(best, counts, strict=True)] == theirs.decode(scores, mask=valid)
    assert not best[~valid].any()


def test_what_iob2_does_not_allow_is_never_predicted():
    tags = ["B-A", "B-B", "I-A", "I-B", "O"]
    ours, _ = both(len(tags))
    with torch.no_grad():
        ours.transitions[4, 2] = ours.first[3] = 50.0  # training data may hold what is not allowed
    torch.manual_seed(1)
    counts = torch.randint(1, 14, (97,))
    valid = torch.arange(13) < counts[:, None]
    found = ours.decode(torch.randn(97, 13, 5) * 3, valid, Allowed(tags))
    for row, count in zip(found, counts, strict=True):
        before = "O"
        for number in row[:count].tolist():
            tag = tags[number]
            assert not tag.startswith("I") or before[1:] == tag[1:], (before, tag)
            before = tag


def test_what_is_allowed_is_chosen_as_without_the_constraint():
    tags = ["B-A", "I-A", "O"]
    ours, _ = both(3)
    scores, valid = torch.randn(211, 3, 3) * 3, torch.ones(211, 3, dtype=torch.bool)
    free, bound = ours.decode(scores, valid), ours.decode(scores, valid, Allowed(tags))
    allowed = torch.tensor([row[0] != 1 and [2, 1] not in [row[0:2].tolist(), row[1:3].tolist()] for row in free])
    assert 0 < allowed.sum() < 211
    assert torch.equal(free[allowed], bound[allowed])
