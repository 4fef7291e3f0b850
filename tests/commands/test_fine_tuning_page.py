"""The commands of docs/fine-tuning.md, run as they stand, with small models."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.corpora import SMALL, pairs
from tests.processes import path

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
SHORT = (
    " training.warmup=1 training.validate_every=4 training.save_every=4 training.batch_tokens=600 data.max_length=120"
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def section(title):
    """The commands below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]


def printed_by(line, place, changes=""):
    command = line + (changes if " train " in line else "")
    environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(place / "cache")}
    done = subprocess.run(command, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (line, done.stderr[-800:])
    return done.stdout


def test_the_commands_run_and_the_model_keeps_the_template_of_its_file(tmp_path):
    pytest.importorskip("gguf")
    from tests.exchange.test_gguf import write

    write(tmp_path / "smollm2.gguf", chat_template=TEMPLATE)
    rows = [
        {"instruction": f"repeat {number}", "input": "b", "output": "ab " * (number % 5 + 1)} for number in range(60)
    ]
    for name, some in (("answers", rows), ("answers-test", rows[:3])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    found = {
        line.split()[1]: printed_by(line, tmp_path, SHORT) for line in section("Instructions") if "printf" not in line
    }
    (chat,) = (printed_by(line, tmp_path) for line in section("Instructions") if "printf" in line)
    assert found["train"].startswith("runs/tuned: loss ") and "perplexity" in found["evaluate"]
    assert "replies: 3" in found["evaluate"] and chat.count("\n") >= 2
    assert (tmp_path / "runs/tuned/chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE


def test_a_domain_is_learned_beside_the_old_data(tmp_path):
    pairs(tmp_path / "pairs.tsv", 200, seed=1)
    pairs(tmp_path / "domain.tsv", 200, seed=2, change=lambda text: text)
    few = " training.warmup=1 training.validate_every=4 training.save_every=4 training.batch_tokens=256"
    printed_by("heedful train pairs.tsv --out runs/general training.steps=4", tmp_path, few + " " + " ".join(SMALL))
    found = {line: printed_by(line, tmp_path, few) for line in section("Your domain, without forgetting")}
    (evaluated,) = (text for line, text in found.items() if " evaluate " in line)
    assert "domain" in evaluated and "pairs" in evaluated
    assert all("bleu[domain]" in text for line, text in found.items() if "--replay" in line)
    assert (tmp_path / "runs/elastic/fisher.safetensors").exists()
