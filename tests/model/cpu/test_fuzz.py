"""Some hundred cases of fuzz.py; `make sanitize` runs thousands."""

import pytest

from heedful.model.cpu.kernels import NATIVE
from tests.model.cpu.fuzz import KINDS, run


@pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")
def test_random_models_and_inputs_give_what_the_modules_give():
    counts = run(range(250))
    for kind in KINDS:
        assert sum(count for name, count in counts.items() if name.startswith(kind.__name__)) > 12, counts
    assert min(counts[name] for name in ("misfits: refused", "writes: as the modules", "reads: as the modules")) > 8, (
        counts
    )
