"""Our search against transformers' generate, on tiny random models: the same n-best with the same scores."""

import pytest
import torch

from heedful.decoding.beam import search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import PromptStepper, SourceStepper
from tests.parity.test_hugging_face import BATCH, CAUSAL, SEQ2SEQ, SOURCE, make, tokens

NEW = 9


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [1, 4, 5])
@pytest.mark.parametrize("name", ["marian", "t5", "bart", "gpt2"])
def test_n_best_equal_those_of_transformers(name, beams, penalty, tmp_path):
    theirs, opened = make({**SEQ2SEQ, **CAUSAL}[name], tmp_path)
    model, eos = opened.model.eval(), 1
    prompt = tokens(SOURCE)
    options = {
        "num_beams": beams,
        "num_return_sequences": beams,
        "max_new_tokens": NEW,
        "eos_token_id": eos,
        "pad_token_id": 0,
        "do_sample": False,
        "output_scores": True,
        "return_dict_in_generate": True,
        "use_cache": False,
        "forced_eos_token_id": None,
        "forced_bos_token_id": None,
    }
    if beams > 1:  # "never" is their name for the rule that stops only when nothing can win
        options |= {"length_penalty": penalty, "early_stopping": "never"}
    expected = theirs.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options)

    config = GenerationConfig(num_beams=beams, num_return_sequences=beams, length_penalty=penalty)
    with torch.inference_mode():
        if name == "gpt2":
            stepper, first, skip = PromptStepper(model, prompt, length=NEW), prompt[:, -1], SOURCE
        else:
            stepper, first, skip = SourceStepper(model, prompt, None, length=NEW), torch.zeros(BATCH).long(), 1
        rules = Rules(config=config, eos=eos)
        found = search(stepper, first, config, eos=eos, limits=[NEW] * BATCH, rules=rules)

    rows = [row[skip:].tolist() for row in expected.sequences]
    wanted = [row[: row.index(eos)] if eos in row else row for row in rows]
    ours = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    assert [hypothesis.tokens for hypothesis in ours] == wanted
    if beams > 1:
        scores = [hypothesis.score for hypothesis in ours]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
