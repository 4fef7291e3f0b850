/* Layers: an encoder, and a step of a decoder. */
#pragma once

#include "attention.h"
#include "training.h"

FAST static void norm_rows(const Norm *of, const Style *style, const float *x, float *y, Count rows) {
    int threads = threads_for(rows * style->width, style->threads);
    EACH_ROW(norm(of, style->rms, style->eps, x + row * style->width, y + row * style->width, style->width));
}

/* Before a part of a layer, or after it: where the part reads from. */
FAST static const float *before(const Norm *norm, const Style *style, float *x, float *normed, Count rows) {
    if (style->pre) {
        norm_rows(norm, style, x, normed, rows);
        return normed;
    }
    return x;
}

FAST static void after(const Norm *norm, const Style *style, float *x, Count rows) {
    if (!style->pre) norm_rows(norm, style, x, x, rows);
}

FAST static void feed_forward(const Layer *layer, const Style *style, float *x, float *normed, float *inner, Count rows,
                              float *rounded) {
    int relu = style->kind == RELU && !style->gated;
    apply(&layer->inner, before(&layer->feedforward_norm, style, x, normed, rows), inner, rows, 0, relu, style->threads,
          rounded);
    if (!relu) activate(style->kind, style->gated, inner, rows, layer->outer.depth);
    apply(&layer->outer, inner, x, rows, 1, 0, style->threads, rounded);
    after(&layer->feedforward_norm, style, x, rows);
}

/* Each token of each sentence looks at all of its sentence. qkv: (sentences source) 3 width; y: (sentences source) width;
   `scratch` holds keys and values of all, or what `attend_all` needs. */
FAST static void look_around(const Style *style, float *qkv, float *y, const float *additive, Count sentences, Count source,
                             float *scratch) {
    Count width = style->width, room = filled(source), head = width / style->heads, rows = sentences * source;
    if (head % PANEL == 0) {
        View query = {.at = qkv, .batch = source * 3 * width, .head = head, .time = 3 * width}, key = query, value = query;
        View to = {.at = y, .batch = source * width, .head = head, .time = width};
        key.at += width, value.at += 2 * width;
        Attention all = {.query = query, .key = key, .value = value, .y = to, .additive = additive, .additive_batch = room,
                         .batch = sentences, .heads = style->heads, .queries = source, .keys = source, .head = head,
                         .scale = style->scale};
        attend_all(&all, scratch, 0, style->threads);
        return;
    }
    float *keys = scratch, *values = keys + sentences * room * width;
    for (Count one = 0; one < sentences; one++)
        lay_out(qkv + one * source * 3 * width + width, 3 * width, source, keys + one * room * width,
            values + one * room * width, style->heads, head, room);
    Other all = {.query = qkv, .keys = keys, .values = values, .additive = additive, .y = y, .stride = 3 * width,
                 .beams = source, .heads = style->heads, .head = head, .source = room, .scale = style->scale};
    int threads = threads_for(rows * room * width, style->threads);
    EACH_ROW(look(&all, row));
}

/* The same for sentences of any length, one after the other without padding: that of number i is rows starts[i] to
   starts[i + 1]. The width of a head is a multiple of sixteen; `longest` decides the size of `scratch`. */
FAST static void look_around_packed(const Style *style, float *qkv, float *y, const Count *starts, Count sentences,
                                    Count longest, float *scratch) {
    Count width = style->width, head = width / style->heads, items = sentences * style->heads;
    Count room = attention_room(longest, head);
    int threads = threads_for(starts[sentences] * longest * width, style->threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++)
        for (Count item = part; item < items; item += threads) {
            Count sentence = item / style->heads, first = starts[sentence], length = starts[sentence + 1] - first;
            View query = {.at = qkv + first * 3 * width, .head = head, .time = 3 * width}, key = query, value = query;
            View to = {.at = y + first * width, .head = head, .time = width};
            key.at += width, value.at += 2 * width;
            Attention one = {.query = query, .key = key, .value = value, .y = to, .batch = 1, .heads = style->heads,
                             .queries = length, .keys = length, .head = head, .scale = style->scale};
            if (length) attend(&one, 0, item % style->heads, scratch + part * room);
        }
}

/* Embedded sentences to their states. They are all equally long, x: (sentences source) width, additive: sentences room;
   or, if there are `starts`, packed, and `source` is the longest. `scratch` ends with the room of `look_around`. */
FAST static void encode(const Layer *layers, const Style *style, float *x, float *scratch, const float *additive,
                        const Count *starts, Count sentences, Count source) {
    Count width = style->width, rows = starts ? starts[sentences] : sentences * source;
    Count widest = width > layers->outer.depth ? width : layers->outer.depth;
    float *normed = scratch, *mixed = normed + rows * width, *threefold = mixed + rows * width;
    float *inner = threefold + 3 * rows * width, *rounded = inner + rows * layers->inner.columns;
    float *around = rounded + rows * (2 + widest / 2);
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(&layer->attention_norm, style, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        if (starts)
            look_around_packed(style, threefold, mixed, starts, sentences, source, around);
        else
            look_around(style, threefold, mixed, additive, sentences, source, around);
        apply(&layer->output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(&layer->attention_norm, style, x, rows);
        feed_forward(layer, style, x, normed, inner, rows, rounded);
    }
}

/* The newest, embedded token of each row to its state. x: rows width */
FAST static void step(const Layer *layers, const Style *style, float *x, float *scratch, const float *additive,
                      int32_t *origin, Count rows, Count sentences, Count source, Count slots, Count room,
                      Count length) {
    Count width = style->width, head = width / style->heads, cross_head = width / style->cross_heads;
    float *normed = scratch, *mixed = normed + rows * width, *threefold = mixed + rows * width;
    float *inner = threefold + 3 * rows * width, *rounded = inner + rows * layers->inner.columns;
    for (Count row = 0; row < rows; row++) origin[row * room + length - 1] = (int32_t)row;
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(&layer->attention_norm, style, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        Own own = {.qkv = threefold, .store = layer->store, .origin = origin, .y = mixed, .heads = style->heads,
                   .head = head, .slots = slots, .room = room, .length = length, .scale = style->scale};
        int threads = threads_for(rows * width * length, style->threads);
        EACH_ROW(look_back(&own, row));
        apply(&layer->output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(&layer->attention_norm, style, x, rows);
        apply(&layer->cross_query, before(&layer->cross_norm, style, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        Other other = {.query = threefold, .keys = layer->keys, .values = layer->values, .additive = additive, .y = mixed,
                       .stride = width, .beams = rows / sentences, .heads = style->cross_heads, .head = cross_head,
                       .source = source, .scale = style->cross_scale};
        threads = threads_for(rows * width * source, style->threads);
        EACH_ROW(look(&other, row));
        apply(&layer->cross_output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(&layer->cross_norm, style, x, rows);
        feed_forward(layer, style, x, normed, inner, rows, rounded);
    }
}
