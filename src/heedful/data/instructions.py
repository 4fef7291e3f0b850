"""Instructions with their answers, under the names that people give them in JSONL, as conversations.

{"instruction": "Name its colour.", "input": "the sky", "output": "Blue."}      Alpaca; Dolly: context, response
{"prompt": "What colour is the sky?", "completion": "Blue."}                    texts, or lists of messages as in TRL
"""

from typing import Any

ANSWERS = {"instruction": ("output", "response"), "prompt": ("completion", "response")}  # by what is asked
ABOUT = ("input", "context")  # what an instruction is about, which may be empty


def conversation(data: Any) -> Any:
    """The messages of an instruction and its answer; whatever has neither key stays as it is. `last`: only the last
    message is one to learn."""
    asked = next((key for key in ANSWERS if key in data), None) if isinstance(data, dict) else None
    if asked is None:
        return data
    answer = next((key for key in ANSWERS[asked] if key in data), None)
    if answer is None:
        raise ValueError(f"no {ANSWERS[asked][0]} (it has {', '.join(map(str, list(data)[:6]))})")
    if isinstance(data[asked], list) and isinstance(data[answer], list):
        return {"messages": [*data[asked], *data[answer]], "last": True}
    about = next((key for key in ABOUT if data.get(key)), None) if asked == "instruction" else None
    system = ["system"] if data.get("system") else []
    for key in [*system, asked, *filter(None, [about]), answer]:
        if not isinstance(data[key], str):
            raise ValueError(f"{key} is not a text")
    for key in (asked, answer):
        if not data[key].strip():
            raise ValueError(f"empty {key}")
    question = data[asked].strip() + (f"\n\n{data[about].strip()}" if about and data[about].strip() else "")
    messages = [("system", data[key]) for key in system] + [("user", question), ("assistant", data[answer])]
    return {"messages": [{"role": role, "content": content} for role, content in messages]}
