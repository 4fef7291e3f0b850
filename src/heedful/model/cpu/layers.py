"""Whole stacks for our kernels: what native/layers.h runs, packed by name into the structs of native/fields.h.

Constant inputs are checked once, when `Layers` and `Texts` are created; the others at each call.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.model.cpu import kernels
from heedful.model.cpu.kernels import PANEL, Panels, Source, address, attention_room, floats, is_plain, matrix


def _structs() -> dict[str, np.dtype]:
    """The structs of native/fields.h, as the compiled module describes them."""
    found: dict[str, np.dtype] = {}
    for name, (size, fields) in kernels.NATIVE.STRUCTS.items() if kernels.NATIVE is not None else ():
        names, types, offsets = zip(*fields, strict=True)
        formats = [found[one] if one in found else np.dtype(one) for one in types]
        found[name] = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    return found


STRUCTS = _structs()
OF_TEXTS = {"store", "keys", "values"}  # the fields of a layer that depend on the texts being decoded
MOST = {"pre": 1, "rms": 1, "gated": 1, "kind": 3}  # of the fields of a style that choose; kinds as in native/rows.h
CROSS = {"cross_query", "cross_output", "cross_norm"}  # what the layers of an encoder lack


class Layers:
    """A stack, as native/ runs it: its `Style`, one `Layer` per layer, and everything they point to.

    maps    for each layer, its linear maps by their name in `Layer`; a stack without `cross_query` only encodes
    norms   for each layer, weight and bias of its norms by their name in `Layer`
    """

    def __init__(
        self,
        style: Mapping[str, float],
        maps: Sequence[Mapping[str, Panels]],
        norms: Sequence[Mapping[str, tuple[Tensor, Tensor | None]]],
    ) -> None:
        self.width, self.heads, self.cross_heads = int(style["width"]), int(style["heads"]), int(style["cross_heads"])
        if not maps:
            raise ValueError("a stack needs at least one layer")
        self.hidden, self.gated = maps[0]["outer"].depth, bool(style["gated"])
        self.held = (maps, norms)  # keeps alive what the structs point to
        for name in ("heads", "cross_heads"):
            count = int(style[name])
            if count < 1 or self.width % count or self.width // count % 8:
                raise ValueError(f"{count} {name} do not split a width of {self.width} into multiples of 8")
        missing = set(STRUCTS["Style"].names or ()) - {*style, "layers", "threads"}
        if missing:
            raise ValueError(f"the style lacks {', '.join(sorted(missing))}")
        for name, most in MOST.items():
            if style[name] not in range(most + 1):
                raise ValueError(f"{name} is {style[name]}, but must be 0 to {most}")
        self.style = np.zeros((), STRUCTS["Style"])
        for name, value in {**style, "layers": len(maps)}.items():
            self.style[name] = value
        self.table = np.zeros(len(maps), STRUCTS["Layer"])
        for index, (layer_maps, layer_norms) in enumerate(zip(maps, norms, strict=True)):
            self._check(layer_maps, layer_norms)
            for name, panels in layer_maps.items():
                for field, value in panels.fields.items():
                    self.table[name][field][index] = value
            for name, (weight, bias) in layer_norms.items():
                self.table[name]["weight"][index], self.table[name]["bias"][index] = address(weight), address(bias)
        self.style_at, self.table_at = self.style.ctypes.data, self.table.ctypes.data
        inner = self.hidden * (1 + self.gated)
        self.row = 5 * self.width + inner + max(self.width, self.hidden) // 2 + 2  # the scratch space of one row

    def _check(self, maps: Mapping[str, Panels], norms: Mapping[str, tuple[Tensor, Tensor | None]]) -> None:
        width, hidden = self.width, self.hidden
        given = {*maps, *norms, *OF_TEXTS}
        missing = set(STRUCTS["Layer"].names or ()) - given
        if missing not in (set(), CROSS):
            raise ValueError(f"the layer lacks {', '.join(sorted(missing))}")
        if unknown := given - set(STRUCTS["Layer"].names or ()):
            raise ValueError(f"no layer has {', '.join(sorted(unknown))}")
        shapes = {
            "query_key_value": (3 * width, width),
            "output": (width, width),
            "cross_query": (width, width),
            "cross_output": (width, width),
            "inner": (hidden * (1 + self.gated), width),
            "outer": (width, hidden),
        }
        for name, panels in maps.items():
            shape = (panels.columns, panels.depth)
            if shape != shapes[name]:
                raise ValueError(f"{name} is {shape}, but must be {shapes[name]}")
        for name, pair in norms.items():
            if pair[0] is None:
                raise ValueError(f"{name} lacks its weight")
            for one in pair:
                if one is not None and (one.shape != (width,) or not is_plain(one)):
                    raise ValueError(f"{name} of {list(one.shape)} does not fit a width of {width}")

    def _scratch(self, rows: int, more: int = 0) -> Tensor:
        return floats(rows * self.row + more)

    def encode(self, x: Tensor, additive: Tensor) -> None:
        """Run an encoder in place. x: (sentences source) width; additive: sentences source, added to the scores, padded
        with -inf to a multiple of eight."""
        assert kernels.NATIVE is not None
        (rows, width), (sentences, room) = matrix(x), matrix(additive)
        source = rows // max(1, sentences)
        fit = width == self.width and source * sentences == rows > 0 and room == source + -source % 8
        if not fit or not is_plain(x) or not is_plain(additive):
            raise ValueError(
                f"{list(x.shape)} with a mask of {list(additive.shape)} does not fit layers of width {self.width}"
            )
        more = max(2 * additive.numel() * width, attention_room(source, width // self.heads))
        scratch = self._scratch(rows, more)
        at = (self.table_at, x.data_ptr(), scratch.data_ptr(), additive.data_ptr(), 0)
        kernels.NATIVE.encode(self.style_at, torch.get_num_threads(), *at, sentences, source)

    def encode_packed(self, x: Tensor, lengths: Tensor) -> None:
        """Run an encoder in place on sentences of these lengths, one after the other without padding. x: rows width"""
        assert kernels.NATIVE is not None
        (rows, width), head = matrix(x), self.width // self.heads
        if lengths.dim() != 1 or not len(lengths):
            raise ValueError(f"lengths of {list(lengths.shape)} are not one number for each sentence")
        starts = F.pad(lengths.long().cumsum(0), (1, 0)).contiguous()
        fit = width == self.width and int(starts[-1]) == rows > 0 and int(lengths.min()) >= 0
        if not fit or not is_plain(x) or head % PANEL:
            raise ValueError(f"{list(x.shape)} in {len(lengths)} sentences does not fit {self.heads} heads of {head}")
        longest = max(1, int(lengths.max()))
        scratch = self._scratch(rows, attention_room(longest, head))
        at = (self.table_at, x.data_ptr(), scratch.data_ptr(), 0, starts.data_ptr())
        kernels.NATIVE.encode(self.style_at, torch.get_num_threads(), *at, len(lengths), longest)

    def step(self, texts: "Texts", x: Tensor, additive: Tensor, origin: Tensor, length: int) -> None:
        """Run one decoder step in place. x: rows width; additive: as above; origin: rows room, the slot that holds the
        keys and values of a row at each time step; `length` includes the new token."""
        assert kernels.NATIVE is not None
        rows, sentences, source = len(x), texts.sentences, texts.source
        if (
            x.shape != (rows, self.width)
            or origin.shape != (rows, texts.room)
            or additive.shape != (sentences, source)
            or rows % sentences
            or not 0 < rows <= texts.slots
            or not 0 < length <= texts.room
            or texts.layers is not self
            or not (is_plain(x) and is_plain(additive) and origin.dtype is torch.int32 and origin.is_contiguous())
        ):
            raise ValueError(
                f"step {length} of {rows} rows does not fit {sentences} sentences with room for {texts.slots} rows of "
                f"{texts.room} tokens"
            )
        scratch = self._scratch(rows)
        at = (texts.table_at, x.data_ptr(), scratch.data_ptr(), additive.data_ptr(), origin.data_ptr())
        sizes = (rows, sentences, source, texts.slots, texts.room, length)
        kernels.NATIVE.step(self.style_at, torch.get_num_threads(), *at, *sizes)


class Texts:
    """The texts being decoded: a store of their keys and values (layers room slots 2 width), and a source for each
    layer."""

    def __init__(self, layers: Layers, store: Tensor, sources: Sequence[Source]) -> None:
        if store.dim() != 5 or not sources or sources[0].keys.dim() != 4:
            raise ValueError(f"a store of {list(store.shape)} and {len(sources)} sources do not fit these layers")
        count, self.room, self.slots = store.shape[:3]
        self.sentences, heads, head, self.source = sources[0].keys.shape
        keys = (self.sentences, layers.cross_heads, layers.width // layers.cross_heads, self.source)
        values = (*keys[:2], *reversed(keys[2:]))
        if (
            "cross_query" not in layers.held[0][0]
            or not len(layers.table) == count == len(sources)
            or store.shape[3:] != (2, layers.width)
            or self.source < 8
            or self.source % 8
            or any(one.keys.shape != keys or one.values.shape != values for one in sources)
            or not all(is_plain(one) for source in sources for one in (source.keys, source.values, store))
        ):
            raise ValueError(f"a store of {list(store.shape)} and {heads} heads of {head} do not fit these layers")
        self.layers, self.held = layers, (store, sources)
        self.table = layers.table.copy()
        self.table["store"] = [one.data_ptr() for one in store]
        self.table["keys"] = [one.keys.data_ptr() for one in sources]
        self.table["values"] = [one.values.data_ptr() for one in sources]
        self.table_at = self.table.ctypes.data
