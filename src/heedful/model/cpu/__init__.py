"""Our own kernels for the CPU (native/), their bindings, and the two places that use them: training and decoding.

The modules of `model/` say what is computed. What stands here computes the same faster where it can; `door.py` decides
whether it can and gives the reason where it cannot.
"""
