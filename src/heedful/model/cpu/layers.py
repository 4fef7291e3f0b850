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
WINDOW = "window"  # a number, where other fields of a layer are weights
MOST = {"pre": 1, "rms": 1, "gated": 1, "kind": 3}  # of the fields of a style that choose; kinds as in native/rows.h
CROSS = {"cross_query", "cross_output", "cross_norm"}  # what layers without a source lack


class Layers:
    """A stack, as native/ runs it: its `Style`, one `Layer` per layer, and everything they point to.

    maps      for each layer, its linear maps by their name in `Layer`; without `cross_query`, it has no source
    norms     for each layer, weight and bias of its norms by their name in `Layer`
    windows   for each layer, how many tokens a row looks back at; 0 = all
    """

    def __init__(
        self,
        style: Mapping[str, float],
        maps: Sequence[Mapping[str, Panels]],
        norms: Sequence[Mapping[str, tuple[Tensor, Tensor | None]]],
        windows: Sequence[int] = (),
    ) -> None:
        missing = set(STRUCTS["Style"].names or ()) - {*style, "layers", "threads"}
        if missing:
            raise ValueError(f"the style lacks {', '.join(sorted(missing))}")
        sizes = ("width", "heads", "kv_heads", "head", "cross_heads", "cross_head")
        self.width, self.heads, self.kv_heads, self.head, self.cross_heads, self.cross_head = (
            int(style[name]) for name in sizes
        )
        if not maps:
            raise ValueError("a stack needs at least one layer")
        self.hidden, self.gated = maps[0]["outer"].depth, bool(style["gated"])
        self.held = (maps, norms)  # keeps alive what the structs point to
        for heads, head in ((self.heads, self.head), (self.cross_heads, self.cross_head)):
            if heads < 1 or head < 8 or head % 8:
                raise ValueError(f"{heads} heads of {head}: there must be one at least, of a multiple of 8")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} keys and values equally")
        for name, most in MOST.items():
            if style[name] not in range(most + 1):
                raise ValueError(f"{name} is {style[name]}, but must be 0 to {most}")
        self.style = np.zeros((), STRUCTS["Style"])
        for name, value in {**style, "layers": len(maps)}.items():
            self.style[name] = value
        self.table = np.zeros(len(maps), STRUCTS["Layer"])
        self.table[WINDOW] = [max(0, window) for window in windows] or 0
        for index, (layer_maps, layer_norms) in enumerate(zip(maps, norms, strict=True)):
            self._check(layer_maps, layer_norms)
            for name, panels in layer_maps.items():
                for field, value in panels.fields.items():
                    self.table[name][field][index] = value
            for name, (weight, bias) in layer_norms.items():
                self.table[name]["weight"][index], self.table[name]["bias"][index] = address(weight), address(bias)
        self.style_at, self.table_at = self.style.ctypes.data, self.table.ctypes.data
        own, cross = self.heads * self.head, self.cross_heads * self.cross_head
        made = max(own + 2 * self.kv_heads * self.head, cross)
        inner = self.hidden * (1 + self.gated)
        deepest = max(self.width, self.hidden, own, cross)
        self.row = self.width + max(own, cross) + made + inner + deepest // 2 + 2  # the scratch space of one row

    def _check(self, maps: Mapping[str, Panels], norms: Mapping[str, tuple[Tensor, Tensor | None]]) -> None:
        width, hidden = self.width, self.hidden
        own, cross = self.heads * self.head, self.cross_heads * self.cross_head
        given = {*maps, *norms, *OF_TEXTS, WINDOW}
        missing = set(STRUCTS["Layer"].names or ()) - given
        if missing not in (set(), CROSS):
            raise ValueError(f"the layer lacks {', '.join(sorted(missing))}")
        if unknown := given - set(STRUCTS["Layer"].names or ()):
            raise ValueError(f"no layer has {', '.join(sorted(unknown))}")
        shapes = {
            "query_key_value": (own + 2 * self.kv_heads * self.head, width),
            "output": (width, own),
            "cross_query": (cross, width),
            "cross_output": (width, cross),
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

    @property
    def has_source(self) -> bool:
        return "cross_query" in self.held[0][0]

    @property
    def reads_prompts(self) -> bool:
        """Whether it can read the prompts of a language model, not only write."""
        return not self.has_source and self.head % PANEL == 0 and not self.table[WINDOW].any()

    def _encodes(self) -> None:
        if self.heads * self.head != self.width or self.kv_heads != self.heads:
            raise ValueError(f"{self.heads} heads of {self.head} do not split a width of {self.width}: only steps can")

    def _scratch(self, rows: int, more: int = 0) -> Tensor:
        return floats(rows * self.row + more)

    def _threads(self, rows: int) -> int:
        return kernels.threads(rows * self.width * self.hidden)

    def encode(self, x: Tensor, additive: Tensor) -> None:
        """Run an encoder in place. x: (sentences source) width; additive: sentences source, added to the scores, padded
        with -inf to a multiple of eight."""
        assert kernels.NATIVE is not None
        self._encodes()
        (rows, width), (sentences, room) = matrix(x), matrix(additive)
        source = rows // max(1, sentences)
        fit = width == self.width and source * sentences == rows > 0 and room == source + -source % 8
        if not fit or not is_plain(x) or not is_plain(additive):
            raise ValueError(
                f"{list(x.shape)} with a mask of {list(additive.shape)} does not fit layers of width {self.width}"
            )
        more = max(2 * additive.numel() * width, attention_room(source, self.head))
        scratch = self._scratch(rows, more)
        at = (self.table_at, x.data_ptr(), scratch.data_ptr(), additive.data_ptr(), 0)
        kernels.NATIVE.encode(self.style_at, self._threads(rows), *at, sentences, source)

    def encode_packed(self, x: Tensor, lengths: Tensor) -> None:
        """Run an encoder in place on sentences of these lengths, one after the other without padding. x: rows width"""
        assert kernels.NATIVE is not None
        self._encodes()
        (rows, width), head = matrix(x), self.head
        if lengths.dim() != 1 or not len(lengths):
            raise ValueError(f"lengths of {list(lengths.shape)} are not one number for each sentence")
        starts = F.pad(lengths.long().cumsum(0), (1, 0)).contiguous()
        fit = width == self.width and int(starts[-1]) == rows > 0 and int(lengths.min()) >= 0
        if not fit or not is_plain(x) or head % PANEL:
            raise ValueError(f"{list(x.shape)} in {len(lengths)} sentences does not fit {self.heads} heads of {head}")
        longest = max(1, int(lengths.max()))
        scratch = self._scratch(rows, attention_room(longest, head))
        at = (self.table_at, x.data_ptr(), scratch.data_ptr(), 0, starts.data_ptr())
        kernels.NATIVE.encode(self.style_at, self._threads(rows), *at, len(lengths), longest)

    def step(
        self,
        texts: "Texts",
        x: Tensor,
        origin: Tensor,
        length: int,
        *,
        additive: Tensor | None = None,
        starts: Tensor | None = None,
        turns: Tensor | None = None,
        biases: Tensor | None = None,
    ) -> None:
        """Run one decoder step in place. x: rows width; origin: rows room, the slot that holds the keys and values of a
        row at each time step; `length` includes the new token. additive: as above, for the sources; starts: when each
        row begins; turns: rows head, cosines and sines of the rotation of each row; biases: heads far, added to the
        scores by distance, that of the newest token last."""
        assert kernels.NATIVE is not None
        rows, sentences, source = len(x), texts.sentences, texts.source
        far = 0 if biases is None else biases.shape[-1]
        if (
            x.shape != (rows, self.width)
            or origin.shape != (rows, texts.room)
            or (additive is None) != (source == 0)
            or (additive is not None and (additive.shape != (sentences, source) or not is_plain(additive)))
            or (starts is not None and (starts.shape != (rows,) or not _is_whole(starts)))
            or (turns is not None and (turns.shape != (rows, self.head) or not is_plain(turns)))
            or (biases is not None and (biases.shape != (self.heads, far) or far < length or not is_plain(biases)))
            or rows % sentences
            or not 0 < rows <= texts.slots
            or not 0 < length <= texts.room
            or texts.layers is not self
            or not (is_plain(x) and _is_whole(origin))
        ):
            raise ValueError(
                f"step {length} of {rows} rows does not fit {sentences} sentences with room for {texts.slots} rows of "
                f"{texts.room} tokens"
            )
        scratch = self._scratch(rows)
        given = (x, scratch, additive, origin, starts, turns, biases)
        sizes = (rows, sentences, source, texts.slots, texts.room, length, far)
        kernels.NATIVE.step(self.style_at, self._threads(rows), texts.table_at, *map(address, given), *sizes)

    def read_prompts(
        self,
        texts: "Texts",
        x: Tensor,
        lengths: Tensor,
        length: int,
        *,
        turns: Tensor | None = None,
        biases: Tensor | None = None,
    ) -> None:
        """Read prompts of these lengths, one after the other without padding, so that the keys and values of all end at
        `length`. x: tokens width, overwritten; turns: tokens head; biases as above."""
        assert kernels.NATIVE is not None
        (tokens, width), rows = matrix(x), len(lengths)
        firsts = F.pad(lengths.long().cumsum(0), (1, 0)).contiguous()
        far = 0 if biases is None else biases.shape[-1]
        if (
            width != self.width
            or not self.reads_prompts
            or int(firsts[-1]) != tokens
            or not 0 < rows <= texts.slots
            or not 0 < length <= texts.room
            or not 0 <= int(lengths.min()) <= int(lengths.max()) <= length
            or (turns is not None and (turns.shape != (tokens, self.head) or not is_plain(turns)))
            or (biases is not None and (biases.shape != (self.heads, far) or far < length or not is_plain(biases)))
            or texts.layers is not self
            or not is_plain(x)
        ):
            raise ValueError(f"{list(x.shape)} in {rows} prompts does not fit layers of width {self.width}")
        scratch = self._scratch(tokens, attention_room(length, self.head))
        given = (x, scratch, firsts, turns, biases)
        sizes = (rows, texts.slots, texts.room, length, far)
        kernels.NATIVE.read_prompts(self.style_at, self._threads(tokens), texts.table_at, *map(address, given), *sizes)


def _is_whole(x: Tensor) -> bool:
    return x.dtype is torch.int32 and x.is_cpu and x.is_contiguous()


class Texts:
    """The texts being decoded: a store of their keys and values (layers room slots 2 kv_heads*head), and a source for
    each layer, or none."""

    def __init__(self, layers: Layers, store: Tensor, sources: Sequence[Source] = ()) -> None:
        if store.dim() != 5 or (layers.has_source and (not sources or sources[0].keys.dim() != 4)):
            raise ValueError(f"a store of {list(store.shape)} and {len(sources)} sources do not fit these layers")
        count, self.room, self.slots = store.shape[:3]
        keys = sources[0].keys.shape if sources else torch.Size((1, layers.cross_heads, layers.cross_head, 0))
        self.sentences, heads, head, self.source = keys
        values = (*keys[:2], *reversed(keys[2:]))
        if (
            len(layers.table) != count
            or len(sources) != (count if layers.has_source else 0)
            or store.shape[3:] != (2, layers.kv_heads * layers.head)
            or (heads, head) != (layers.cross_heads, layers.cross_head)
            or (sources and self.source < 8)
            or self.source % 8
            or any(one.keys.shape != keys or one.values.shape != values for one in sources)
            or not is_plain(store)
            or not all(is_plain(one) for source in sources for one in (source.keys, source.values))
        ):
            raise ValueError(f"a store of {list(store.shape)} and {heads} heads of {head} do not fit these layers")
        self.layers, self.held = layers, (store, sources)
        self.table = layers.table.copy()
        self.table["store"] = [one.data_ptr() for one in store]
        if sources:
            self.table["keys"] = [one.keys.data_ptr() for one in sources]
            self.table["values"] = [one.values.data_ptr() for one in sources]
        self.table_at = self.table.ctypes.data
