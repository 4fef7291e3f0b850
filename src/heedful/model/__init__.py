"""TENSORS -> TENSORS: the Transformer and its parts. Independent of text, files, training and logging.

Axis names, the same everywhere: batch source target query key heads kv_heads width head hidden vocab rows
(rows = batch x beam).
"""
