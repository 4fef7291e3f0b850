"""TENSORS -> TENSORS: the Transformer and its parts. Knows nothing of text, files, training or logging.

Axes, by the one name each has everywhere: batch source target query key heads kv_heads width head hidden vocab rows
(rows = batch x beam).
"""
