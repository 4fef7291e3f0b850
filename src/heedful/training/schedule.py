"""The learning rate at each step: a function of the step alone, so resuming needs no state."""

import math

from heedful.training.recipe import TrainingConfig


def learning_rate(config: TrainingConfig, step: int, *, width: int) -> float:
    """At step 1, 2, ... Rises linearly over `warmup` steps, then:

    inverse_sqrt    peak * sqrt(warmup / step)                        Vaswani et al. 2017, equation 3
    linear          peak * (steps - step) / (steps - warmup)
    cosine          peak * (1 + cos(pi * share of what is done)) / 2  Loshchilov and Hutter 2017
    constant        peak

    linear and cosine end at a fiftieth of the peak: at zero the last steps would be wasted.
    """
    warmup = max(1, config.warmup)
    peak = config.learning_rate or (width * warmup) ** -0.5
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    done = min(1.0, (step - warmup) / max(1, config.steps - warmup))
    share = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return peak * (0.02 + 0.98 * share)
