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

/* The texts of a step. */
typedef struct {
    const float *additive; /* sentences source: added to what is seen of the sources; NULL without sources */
    int32_t *origin;       /* these as in `Own` */
    const int32_t *starts;
    const float *turns, *biases;
    Count rows, sentences, source, slots, room, length, far;
} Writing;

static Count most_of(Count a, Count b) { return a > b ? a : b; }

/* The newest, embedded token of each row to its state. x: rows width */
FAST static void step(const Layer *layers, const Style *style, const Writing *of, float *x, float *scratch) {
    Count width = style->width, rows = of->rows, length = of->length, own_width = style->heads * style->head;
    Count cross_width = style->cross_heads * style->cross_head, all = own_width + 2 * style->kv_heads * style->head;
    float *normed = scratch, *mixed = normed + rows * width, *made = mixed + rows * most_of(own_width, cross_width);
    float *inner = made + rows * most_of(all, cross_width), *rounded = inner + rows * layers->inner.columns;
    for (Count row = 0; row < rows; row++) of->origin[row * of->room + length - 1] = (int32_t)row;
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(&layer->attention_norm, style, x, normed, rows), made, rows, 0, 0,
              style->threads, rounded);
        Own own = {.qkv = made, .store = layer->store, .origin = of->origin, .starts = of->starts, .turns = of->turns,
                   .biases = of->biases, .y = mixed, .heads = style->heads, .kv_heads = style->kv_heads,
                   .head = style->head, .slots = of->slots, .room = of->room, .length = length,
                   .window = layer->window, .far = of->far, .scale = style->scale};
        int threads = threads_for(rows * own_width * length, style->threads);
        EACH(item, rows * style->kv_heads, look_back(&own, item));
        apply(&layer->output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(&layer->attention_norm, style, x, rows);
        if (of->source) {
            apply(&layer->cross_query, before(&layer->cross_norm, style, x, normed, rows), made, rows, 0, 0,
                  style->threads, rounded);
            Other other = {.query = made, .keys = layer->keys, .values = layer->values, .additive = of->additive,
                           .y = mixed, .stride = cross_width, .beams = rows / of->sentences,
                           .heads = style->cross_heads, .head = style->cross_head, .source = of->source,
                           .scale = style->cross_scale};
            threads = threads_for(rows * cross_width * of->source, style->threads);
            EACH_ROW(look(&other, row));
            apply(&layer->cross_output, mixed, x, rows, 1, 0, style->threads, rounded);
            after(&layer->cross_norm, style, x, rows);
        }
        feed_forward(layer, style, x, normed, inner, rows, rounded);
    }
}

/* Prompts, one after the other without padding: that of row i is tokens firsts[i] to firsts[i + 1], and ends at `length`. */
typedef struct {
    const Count *firsts;
    const float *turns;  /* tokens head */
    const float *biases; /* as in `Own` */
    Count rows, slots, length, far;
} Prompts;

#define TOGETHER (4 * HIGH) /* tokens that pass through the linear maps at once */

/* The tokens of a row: queries and keys are rotated, keys and values put away. */
FAST static void put_away(const Layer *layer, const Style *style, const Prompts *of, float *made, Count row) {
    Count head = style->head, width = style->kv_heads * head, all = style->heads * head + 2 * width;
    for (Count token = of->firsts[row]; token < of->firsts[row + 1]; token++) {
        float *own = made + token * all, *key = own + style->heads * head;
        float *put = layer->store + ((of->length - of->firsts[row + 1] + token) * of->slots + row) * 2 * width;
        for (Count one = 0; of->turns && one < style->heads + style->kv_heads; one++)
            rotate_head(own + one * head, of->turns + token * head, head);
        memcpy(put, key, 2 * width * sizeof(float));
    }
}

/* One head of a row: `item` counts them. By distance, a query's biases begin one place before those of the last query. */
FAST static void look_within(const Style *style, const Prompts *of, float *made, float *mixed, Count item, float *scratch) {
    Count row = item / style->heads, number = item % style->heads, group = number / (style->heads / style->kv_heads);
    Count head = style->head, own = style->heads * head, all = own + 2 * style->kv_heads * head;
    Count first = of->firsts[row], count = of->firsts[row + 1] - first;
    View query = {.at = made + first * all + number * head, .time = all}, key = query, value = query;
    View to = {.at = mixed + first * own + number * head, .time = own};
    key.at = made + first * all + own + group * head, value.at = key.at + style->kv_heads * head;
    Attention one = {.query = query, .key = key, .value = value, .y = to, .batch = 1, .heads = 1, .queries = count,
                     .keys = count, .head = head, .scale = style->scale, .causal = 1,
                     .additive = of->biases ? of->biases + (number + 1) * of->far - 1 : NULL, .additive_query = -1};
    if (count) attend(&one, 0, 0, scratch);
}

/* Embedded prompts to the keys and values of all layers. Heads are multiples of sixteen, and there are no windows.
   x: tokens width; `scratch` ends with the room of attention for each thread. */
FAST static void read_prompts(const Layer *layers, const Style *style, const Prompts *of, float *x, float *scratch) {
    Count width = style->width, tokens = of->firsts[of->rows], own = style->heads * style->head;
    Count all = own + 2 * style->kv_heads * style->head, some = tokens < TOGETHER ? tokens : TOGETHER;
    Count room = attention_room(of->length, style->head), items = of->rows * style->heads;
    float *made = scratch, *mixed = made + tokens * all, *normed = mixed + tokens * own, *inner = normed + some * width;
    float *rounded = inner + some * layers->inner.columns;
    float *around = rounded + some * (2 + most_of(most_of(width, own), layers->outer.depth) / 2);
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        int threads = threads_for(tokens * of->length * own, style->threads);
        for (Count at = 0; at < tokens; at += some) {
            Count count = tokens - at < some ? tokens - at : some;
            apply(&layer->query_key_value, before(&layer->attention_norm, style, x + at * width, normed, count),
                  made + at * all, count, 0, 0, style->threads, rounded);
        }
        EACH(row, of->rows, put_away(layer, style, of, made, row));
        if (layer + 1 == layers + style->layers) return; /* nothing looks at its states */
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int part = 0; part < threads; part++)
            for (Count item = part; item < items; item += threads)
                look_within(style, of, made, mixed, item, around + part * room);
        for (Count at = 0; at < tokens; at += some) {
            Count count = tokens - at < some ? tokens - at : some;
            apply(&layer->output, mixed + at * own, x + at * width, count, 1, 0, style->threads, rounded);
            after(&layer->attention_norm, style, x + at * width, count);
            feed_forward(layer, style, x + at * width, normed, inner, count, rounded);
        }
    }
}
