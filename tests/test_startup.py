"""Commands start quickly: what they do not import, and that garbage is looked for again afterwards."""

import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parent / "fixtures" / "v0_1" / "translator"
# Each took a tenth of a second or more, or drags in what does.
NEEDLESS = {"fastapi", "jinja2", "lxml", "matplotlib", "pandas", "PIL", "pysbd", "sacrebleu", "scipy", "sympy",
            "torch._dynamo", "torch._inductor", "torch.onnx", "transformers", "uvicorn"}  # fmt: skip


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules that are loaded at the end of this code, with these arguments."""
    code = f"import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{code}"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, input="a b c\n", capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_translation_imports_nothing_needless():
    modules = loaded("from heedful.commands.main import main\nmain()", "translate", str(MODEL))
    assert "heedful.translator" in modules
    assert not modules & {*NEEDLESS, "rich", "heedful.exchange.hugging_face", "heedful.tasks", "heedful.training"}


def test_a_training_imports_nothing_needless_before_its_first_step():
    modules = loaded("from heedful import startup\nstartup.load('heedful.training.run')")
    assert "heedful.training.loop" in modules
    assert not modules & NEEDLESS


def test_garbage_is_looked_for_once_everything_is_imported():
    code = """if True:
        import gc
        from heedful import startup
        startup.load("heedful.checkpoint")
        assert gc.isenabled() and gc.get_freeze_count() > 100_000
        gc.disable()
        startup.load("heedful.translator")
        assert not gc.isenabled()
        try:
            startup.load("heedful.nothing")
        except ModuleNotFoundError:
            gc.enable()
        frozen = gc.get_freeze_count()
        startup.load("heedful.translator")
        assert gc.isenabled() and gc.get_freeze_count() <= frozen
    """
    subprocess.run([sys.executable, "-c", code], check=True)
