"""`heedful generate`: a language model continues a prompt."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful import startup
from heedful.commands.lines import reading
from heedful.commands.options import Parts, generation_options


@generation_options(max_new_tokens=200, num_beams=1, do_sample=True, temperature=0.8, top_p=0.95)
def generate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="Text to continue. Default: standard input.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always pick the most likely token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSONL.")] = False,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    parts: Parts = None,
    *,
    generation: dict[str, Any],
) -> None:
    """Continue a text with a language model: by sampling, unless --greedy or a beam size above 1 is given.

    Examples:

      heedful generate runs/book "Once upon a time" --seed 1

      heedful generate runs/book --greedy --max-new-tokens 50 < prompt.txt
    """
    startup.load("heedful.generator")
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.generator import load

    sampled = generation["do_sample"] and not greedy and generation["num_beams"] == 1
    config = parse(GenerationConfig, {**generation, "do_sample": sampled})
    generator = load(model, quantize=quantize)
    with reading("-") if not prompt else nullcontext(iter(prompt)) as lines:
        prompts = prompt or ["\n".join(lines).rstrip("\n")]
    for text, found in zip(prompts, generator.generate(prompts, config), strict=True):
        for one in found:
            if as_json:
                line = {"prompt": text, "text": one.text, "score": one.score, "finish_reason": one.stopped}
                print(json.dumps(line, ensure_ascii=False))
            else:
                print(text + one.text)
