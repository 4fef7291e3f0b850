/* Linear maps in training, forwards and backwards: y = x W' + b.

   x: rows inputs; W: outputs inputs; y: rows outputs; inputs and outputs are multiples of sixteen. */
#pragma once

#include "training.h"

#define ROWS 256 /* of a sum over rows at a time: those of 16 inputs stay in the nearest cache */
#define BESIDE (SUMS / 12) /* panels at once there */
#define SOME 96  /* rows that go through a whole network at once, or outputs of such a sum: what is between stays there */

/* W in panels of outputs, for x W'; what is missing of the last is zero. */
FAST static void pack_outputs(const float *weight, Count outputs, Count inputs, float *to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Count output = 0; output < outputs; output += PANEL)
        turn(weight + output * inputs, inputs, outputs - output < PANEL ? outputs - output : PANEL, inputs,
             to + output * inputs, PANEL);
}

/* `count` rows of sixteen numbers, `stride` apart, side by side. */
INLINE void pack_panel(const float *from, Count stride, Count count, float *to) {
    for (Count row = 0; row < count; row++, from += stride, to += PANEL)
        for (int part = 0; part < PARTS; part++) store_line(to + LANES * part, load_line(from + LANES * part));
}

/* Columns `width` of `count` rows, in tiles: as many as are multiplied at once side by side. */
FAST static void lay_tiles(const float *from, Count stride, Count count, Count width, float *to) {
    Count whole = width / TILE * TILE, rest = width - whole;
    for (Count row = 0; row < count; row++, from += stride, to += TILE) {
        for (Count i = 0; i < whole; i += TILE) memcpy(to + i * ROWS, from + i, TILE * sizeof(float));
        if (rest) memcpy(to + whole * ROWS, from + whole, rest * sizeof(float));
    }
}

/* W in panels of inputs, for dY W. */
FAST static void pack_inputs(const float *weight, Count outputs, Count inputs, float *to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Count input = 0; input < inputs; input += PANEL)
        pack_panel(weight + input, inputs, outputs, to + input * outputs);
}

/* `call` for blocks of `rows` rows, `count` from `first` on, each thread its own. */
#define EACH_BLOCK(call)                                                                    \
    do {                                                                                    \
        _Pragma("omp parallel for num_threads(threads) schedule(static)")                   \
        for (int part = 0; part < threads; part++) {                                        \
            Count end = rows * (part + 1) / threads, count = 0;                             \
            for (Count first = rows * part / threads; first < end; first += count) {        \
                count = end - first < SOME ? end - first : SOME;                            \
                call;                                                                       \
            }                                                                               \
        }                                                                                   \
    } while (0)

/* y = x W' + b of some rows, with W packed. */
FAST static void map_rows(const float *x, const float *packed, const float *bias, float *y, Count rows, Count depth,
                          Count columns, int relu) {
    Product job = {.x = x, .weight = packed, .bias = bias, .y = y, .rows = rows, .depth = depth, .columns = columns,
                   .relu = relu};
    panels(&job, 0, columns / PANEL);
}

/* dW = dY' X, or dW + dY' X. Both are packed, some rows and some outputs at a time: as they come, their columns
   are so far apart that they would push each other out of the cache. */
typedef struct {
    const float *d_y, *x;
    float *d_w;
    Count rows, outputs, inputs;
    int add;
} WeightGradient;

/* The outputs from `first` to `end`, `wide` panels of inputs, with both packed. */
INLINE void gradient_tiles(const WeightGradient *of, int wide, Count first, Count end, Count input, Count depth, const float *panel,
                        const float *tiles, int add) {
    for (Count output = first; output < end; output += TILE, tiles += TILE * ROWS) {
        float *to = of->d_w + output * of->inputs + input;
        switch (end - output < TILE ? end - output : TILE) {
#define CASE(count)                                                                                        \
    case count: strip(count, wide, tiles, 1, TILE, panel, PANEL * ROWS, PANEL, depth, to, of->inputs, add); break;
            CASES
            CASE(TILE)
#undef CASE
        }
    }
}

/* The outputs from `first` to `end`, the inputs from `left` to `right`. */
FAST static void gradient_block(const WeightGradient *of, Count first, Count end, Count left, Count right, float *scratch) {
    Count inputs = of->inputs;
    float *by = scratch + ROWS * inputs;
    for (Count row = 0; row < of->rows; row += ROWS) {
        Count depth = of->rows - row < ROWS ? of->rows - row : ROWS;
        int add = of->add || row > 0;
        for (Count input = left; input < right; input += PANEL)
            pack_panel(of->x + row * inputs + input, inputs, depth, scratch + input * ROWS);
        for (Count some = first; some < end; some += SOME) {
            Count until = end - some < SOME ? end : some + SOME;
            lay_tiles(of->d_y + row * of->outputs + some, of->outputs, depth, until - some, by);
            Count input = left;
            for (; input + BESIDE * PANEL <= right; input += BESIDE * PANEL)
                gradient_tiles(of, BESIDE, some, until, input, depth, scratch + input * ROWS, by, add);
            for (; input < right; input += PANEL)
                gradient_tiles(of, 1, some, until, input, depth, scratch + input * ROWS, by, add);
        }
    }
}

static Count gradient_room(Count inputs) { return ROWS * (inputs + SOME); }

FAST static void weight_gradient(const WeightGradient *of, float *scratch, int threads) {
    threads = threads_for(of->rows * of->inputs * of->outputs, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) { /* each takes its share of what there is more of */
        float *room = scratch + part * gradient_room(of->inputs);
        Count all = of->inputs / PANEL, left = all * part / threads * PANEL, right = all * (part + 1) / threads * PANEL;
        if (of->inputs > of->outputs)
            gradient_block(of, 0, of->outputs, left, right, room);
        else
            gradient_block(of, of->outputs * part / threads, of->outputs * (part + 1) / threads, 0, of->inputs, room);
    }
}

/* Room for what follows, in numbers: for weights packed, and on the way back for rows. */
static Count linear_room(Count inputs, Count outputs, int back, int threads) {
    Count packed = 2 * inputs * outputs, gradients = threads * gradient_room(inputs > outputs ? inputs : outputs);
    return back && gradients > packed ? gradients : packed;
}

typedef struct {
    const float *x, *weight, *bias, *d_y;
    float *y, *d_x, *d_w; /* on the way back; NULL what is not wanted */
    Count rows, inputs, outputs;
} Linear;

FAST static void linear(const Linear *of, float *scratch, int threads) {
    Count rows = of->rows, in = of->inputs, out = of->outputs;
    threads = threads_for(rows * in * out, threads);
    pack_outputs(of->weight, out, in, scratch, threads);
    EACH_BLOCK(map_rows(of->x + first * in, scratch, of->bias, of->y + first * out, count, in, out, 0));
}

FAST static void linear_back(const Linear *of, float *scratch, int threads) {
    Count rows = of->rows, in = of->inputs, out = of->outputs;
    threads = threads_for(rows * in * out, threads);
    if (of->d_x) {
        pack_inputs(of->weight, out, in, scratch, threads);
        EACH_BLOCK(map_rows(of->d_y + first * out, scratch, NULL, of->d_x + first * in, count, out, in, 0));
    }
    WeightGradient job = {.d_y = of->d_y, .x = of->x, .d_w = of->d_w, .rows = rows, .outputs = out, .inputs = in};
    if (of->d_w) weight_gradient(&job, scratch, threads);
}

/* y = W2 h + b2 with h = dropout(f(W1 x + b1)), or dropout(f(g) * u) with [g, u] = W1 x + b1 where it is gated.

   `inner` is what f is given: all that the way back needs, which makes h of it once more. Of a ReLU, it is h itself. */
typedef struct {
    const float *x, *first, *first_bias, *second, *second_bias, *d_y;
    float *inner, *y, *d_inner, *active, *d_x, *d_first, *d_second; /* NULL what is not wanted; active: h for d_second */
    Count rows, width, hidden;
    int kind, gated;
    uint32_t dropped, seed, second_seed; /* see `draw`; none if `dropped` is 0 */
    float factor;                        /* of what is not dropped */
} Network;

/* Whether h takes the place of what f is given. */
static int is_in_place(const Network *of) { return of->kind == RELU && !of->gated; }

static Count inner_size(const Network *of) { return of->hidden * (1 + of->gated); }

/* Room for the maps, packed, and for some rows of h for each thread; on the way back also for gradients of weights. */
static Count feed_room(const Network *of, int back, int threads) {
    Count packed = of->width * (inner_size(of) + of->hidden), wide = inner_size(of) > of->width ? inner_size(of) : of->width;
    Count gradients = back ? threads * gradient_room(wide) : 0;
    packed += threads * SOME * of->hidden;
    return gradients > packed ? gradients : packed;
}

/* What is kept of sixteen values of h: all bits set where it is. */
typedef struct {
    Whole kept[2];
} Drawn;

INLINE void draw_for(const Network *of, Count at, Drawn *drawn) {
    if (of->dropped && at % 16 == 0) draw(at, of->dropped, of->seed, of->second_seed, drawn->kept);
}

/* A line of h, from `at` on, with 0 or `factor`. */
INLINE Line thinned(const Network *of, Count at, const Drawn *drawn, Line value) {
    WholeLine kept;
    if (!of->dropped) return value;
    memcpy(&kept, drawn->kept + at / 8 % 2, sizeof kept);
    return (Line)((WholeLine)(value * of->factor) & kept);
}

/* h of a row, from its place among all on. */
INLINE void hidden_row(const Network *of, int kind, int gated, Count row, float *to) {
    const float *inner = of->inner + row * inner_size(of);
    Drawn drawn = {0};
    for (Count i = 0, at = row * of->hidden; i < of->hidden; i += LANES, at += LANES) {
        draw_for(of, at, &drawn);
        Line value = line_function(kind, load_line(inner + i));
        if (gated) value *= load_line(inner + of->hidden + i);
        store_line(to + i, thinned(of, at, &drawn, value));
    }
}

/* From the gradient of a row of h, that of what f is given; `active`: h once more, or NULL. */
INLINE void hidden_row_back(const Network *of, int kind, int gated, Count row, const float *d_active, float *active) {
    const float *inner = of->inner + row * inner_size(of);
    float *d_inner = of->d_inner + row * inner_size(of);
    Drawn drawn = {0};
    for (Count i = 0, at = row * of->hidden; i < of->hidden; i += LANES, at += LANES) {
        Line x = load_line(inner + i), d = load_line(d_active + i), slope;
        if (kind == RELU && !gated) { /* what was dropped is zero, like what was negative */
            store_line(d_inner + i, (Line)((WholeLine)(of->dropped ? d * of->factor : d) & ~(x <= 0)));
            continue;
        }
        draw_for(of, at, &drawn);
        d = thinned(of, at, &drawn, d);
        Line f = line_function_and_slope(kind, x, &slope);
        if (gated) {
            Line up = load_line(inner + of->hidden + i);
            store_line(d_inner + of->hidden + i, f * d);
            slope *= up, f *= up;
        }
        if (active) store_line(active + i, thinned(of, at, &drawn, f));
        store_line(d_inner + i, slope * d);
    }
}

/* `call` with the kind of f, which must be a constant there. */
#define BY_KIND(call)                            \
    switch (of->kind) {                          \
    case RELU: call(RELU); break;                \
    case GELU: call(GELU); break;                \
    case GELU_TANH: call(GELU_TANH); break;      \
    case SILU: call(SILU); break;                \
    }

FAST static void hidden_rows(const Network *of, Count first, Count count, float *to) {
#define ROWS_OF(kind)                                                                                         \
    for (Count row = 0; row < count; row++)                                                                   \
        of->gated ? hidden_row(of, kind, 1, first + row, to + row * of->hidden)                               \
                  : hidden_row(of, kind, 0, first + row, to + row * of->hidden)
    BY_KIND(ROWS_OF)
#undef ROWS_OF
}

FAST static void hidden_rows_back(const Network *of, Count first, Count count, const float *d_active) {
    float *active = of->active ? of->active + first * of->hidden : NULL;
#define ROWS_OF(kind)                                                                                         \
    for (Count row = 0; row < count; row++) {                                                                 \
        const float *d = d_active + row * of->hidden;                                                         \
        float *to = active ? active + row * of->hidden : NULL;                                                \
        of->gated ? hidden_row_back(of, kind, 1, first + row, d, to) : hidden_row_back(of, kind, 0, first + row, d, to); \
    }
    BY_KIND(ROWS_OF)
#undef ROWS_OF
}

FAST static void feed_some(const Network *of, const float *packed, float *scratch, Count first, Count count) {
    Count width = of->width, hidden = of->hidden, size = inner_size(of);
    float *inner = of->inner + first * size, *active = scratch;
    map_rows(of->x + first * width, packed, of->first_bias, inner, count, width, size, is_in_place(of));
    if (!is_in_place(of))
        hidden_rows(of, first, count, scratch);
    else {
        active = inner;
        if (of->dropped)
            drop_part(NULL, of->inner, of->inner, first * hidden, (first + count) * hidden, of->dropped, of->factor,
                      of->seed, of->second_seed);
    }
    map_rows(active, packed + width * size, of->second_bias, of->y + first * width, count, hidden, width, 0);
}

FAST static void feed(const Network *of, float *scratch, int threads) {
    Count rows = of->rows, size = of->width * inner_size(of);
    threads = threads_for(rows * size, threads);
    pack_outputs(of->first, inner_size(of), of->width, scratch, threads);
    pack_outputs(of->second, of->width, of->hidden, scratch + size, threads);
    float *each = scratch + size + of->width * of->hidden;
    EACH_BLOCK(feed_some(of, scratch, each + part * SOME * of->hidden, first, count));
}

FAST static void feed_back_some(const Network *of, const float *packed, float *scratch, Count first, Count count) {
    Count width = of->width, hidden = of->hidden, size = inner_size(of);
    map_rows(of->d_y + first * width, packed, NULL, scratch, count, width, hidden, 0);
    hidden_rows_back(of, first, count, scratch);
    if (of->d_x)
        map_rows(of->d_inner + first * size, packed + width * hidden, NULL, of->d_x + first * width, count, size, width, 0);
}

FAST static void feed_back(const Network *of, float *scratch, int threads) {
    Count rows = of->rows, inner = inner_size(of), packed = of->width * of->hidden;
    threads = threads_for(rows * of->width * inner, threads);
    pack_inputs(of->second, of->width, of->hidden, scratch, threads);
    if (of->d_x) pack_inputs(of->first, inner, of->width, scratch + packed, threads);
    float *each = scratch + packed + of->width * inner;
    EACH_BLOCK(feed_back_some(of, scratch, each + part * SOME * of->hidden, first, count));
    WeightGradient first = {.d_y = of->d_inner, .x = of->x, .d_w = of->d_first, .rows = rows, .outputs = inner,
                            .inputs = of->width};
    WeightGradient second = {.d_y = of->d_y, .x = is_in_place(of) ? of->inner : of->active, .d_w = of->d_second,
                             .rows = rows, .outputs = of->width, .inputs = of->hidden};
    if (of->d_first) weight_gradient(&first, scratch, threads);
    if (of->d_second) weight_gradient(&second, scratch, threads);
}
