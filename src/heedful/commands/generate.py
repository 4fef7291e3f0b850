"""`heedful generate`: a language model continues a prompt."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.options import Parts


def generate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="Text to continue. Default: standard input.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 200,
    num_return_sequences: Annotated[
        int, typer.Option("--num-return-sequences", "-n", help="Continuations per prompt.")
    ] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always pick the most likely token.")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; higher = more random.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the top tokens with total probability p.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than p times the best one.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: less repetition.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Random seed of the samples.")] = None,
    stop_strings: Annotated[
        list[str] | None, typer.Option("--stop-strings", "--stop", help="Stop before this string.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSONL.")] = False,
    parts: Parts = None,
) -> None:
    """Continue a text with a language model.

    Examples:

      heedful generate runs/book "Once upon a time" --seed 1

      heedful generate runs/book --greedy --max-new-tokens 50 < prompt.txt
    """
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.generator import load

    given = {**locals(), "stop_strings": stop_strings or []}
    keys = {name: given[name] for name in GenerationConfig.model_fields if name in given}
    config = parse(GenerationConfig, {**keys, "do_sample": not greedy, "num_beams": max(1, num_return_sequences)})
    generator = load(model)
    prompts = prompt or [sys.stdin.read().rstrip("\n")]
    for text, found in zip(prompts, generator.generate(prompts, config), strict=True):
        for one in found:
            if as_json:
                line = {"prompt": text, "text": one.text, "score": one.score, "finish_reason": one.stopped}
                print(json.dumps(line, ensure_ascii=False))
            else:
                print(text + one.text)
