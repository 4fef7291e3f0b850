"""Our own CPU kernels (native/), their bindings, and the two users: training and decoding.

The modules of `model/` define what is computed. The code here computes the same, faster, where it can; `door.py`
decides whether it can, and gives the reason if not.
"""
