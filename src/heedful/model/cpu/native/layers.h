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

/* Embedded sentences, all equally long, to their states. x: (sentences source) width; additive: sentences room. `scratch`
   ends with the room of `look_around`. */
FAST static void encode(const Layer *layers, const Style *style, float *x, float *scratch, const float *additive,
                        Count sentences, Count source) {
    Count width = style->width, rows = sentences * source, widest = width > layers->outer.depth ? width : layers->outer.depth;
    float *normed = scratch, *mixed = normed + rows * width, *threefold = mixed + rows * width;
    float *inner = threefold + 3 * rows * width, *rounded = inner + rows * layers->inner.columns;
    float *around = rounded + rows * (2 + widest / 2);
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(&layer->attention_norm, style, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
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
