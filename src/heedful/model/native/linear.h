/* Linear maps in training, forwards and backwards: y = x W' + b.

   x: rows inputs; W: outputs inputs; y: rows outputs; inputs and outputs are multiples of sixteen. */
#pragma once

#include "training.h"

#define ROWS 256 /* of a sum over rows at a time: those of 16 inputs stay in the nearest cache */

/* W in panels of outputs, for x W'. */
FAST static void lay_outputs(const float *weight, Count outputs, Count inputs, float *to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Count output = 0; output < outputs; output += PANEL)
        turn(weight + output * inputs, inputs, PANEL, inputs, to + output * inputs, PANEL);
}

/* `count` rows of sixteen numbers, `stride` apart, side by side. */
INLINE void lay_panel(const float *from, Count stride, Count count, float *to) {
    for (Count row = 0; row < count; row++, from += stride, to += PANEL)
        for (int part = 0; part < PARTS; part++) store_line(to + LANES * part, load_line(from + LANES * part));
}

/* W in panels of inputs, for dY W. */
FAST static void lay_inputs(const float *weight, Count outputs, Count inputs, float *to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Count input = 0; input < inputs; input += PANEL)
        lay_panel(weight + input, inputs, outputs, to + input * outputs);
}

/* Each thread takes rows of its own. */
FAST static void by_rows(const Product *job, int threads) {
    Count tiles = (job->rows + TILE - 1) / TILE, count = (job->columns + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        Count first = tiles * part / threads * TILE, end = tiles * (part + 1) / threads * TILE;
        Product some = *job;
        some.rows = (end < job->rows ? end : job->rows) - first;
        some.x += first * job->depth, some.y += first * job->columns;
        if (some.rows > 0) panels(&some, 0, count);
    }
}

/* dW = dY' X for the outputs from `first` to `end`. Both are laid out anew, some rows at a time: as they come, their
   columns are so far apart that they would push each other out of the cache. */
FAST static void weigh(const float *d_y, const float *x, float *d_w, Count rows, Count outputs, Count inputs, Count first,
                       Count end, float *scratch) {
    float *by = scratch + ROWS * inputs;
    for (Count row = 0; row < rows; row += ROWS) {
        Count depth = rows - row < ROWS ? rows - row : ROWS;
        for (Count input = 0; input < inputs; input += PANEL)
            lay_panel(x + row * inputs + input, inputs, depth, scratch + input * ROWS);
        for (Count k = 0; k < depth; k++)
            for (Count output = first; output < end; output += TILE) {
                Count count = end - output < TILE ? end - output : TILE;
                const float *from = d_y + (row + k) * outputs + output;
                float *to = by + (output - first) * ROWS + k * TILE;
                if (count == TILE) /* a size known beforehand is copied by whole registers */
                    memcpy(to, from, TILE * sizeof(float));
                else
                    memcpy(to, from, count * sizeof(float));
            }
        for (Count input = 0; input < inputs; input += PANEL)
            for (Count output = first; output < end; output += TILE) {
                const float *some = by + (output - first) * ROWS, *panel = scratch + input * ROWS;
                float *to = d_w + output * inputs + input;
                switch (end - output < TILE ? end - output : TILE) {
#define CASE(count) case count: strip(count, some, 1, TILE, panel, PANEL, depth, to, inputs, row > 0); break;
                    CASES
                    CASE(TILE)
#undef CASE
                }
            }
    }
}

typedef struct {
    const float *x, *weight, *bias, *d_y;
    float *y, *d_x, *d_w; /* on the way back; NULL what is not wanted */
    Count rows, inputs, outputs;
} Linear;

/* Room for what follows, in numbers. */
static Count linear_room(const Linear *of, int threads) {
    Count laid = of->inputs * of->outputs, weighed = threads * ROWS * (of->inputs + of->outputs + TILE);
    return laid > weighed ? laid : weighed;
}

FAST static void linear(const Linear *of, float *scratch, int threads) {
    threads = threads_for(of->rows * of->inputs * of->outputs, threads);
    lay_outputs(of->weight, of->outputs, of->inputs, scratch, threads);
    Product job = {.x = of->x, .weight = scratch, .bias = of->bias, .y = of->y, .rows = of->rows, .depth = of->inputs,
                   .columns = of->outputs};
    by_rows(&job, threads);
}

FAST static void linear_back(const Linear *of, float *scratch, int threads) {
    threads = threads_for(of->rows * of->inputs * of->outputs, threads);
    if (of->d_x) {
        lay_inputs(of->weight, of->outputs, of->inputs, scratch, threads);
        Product job = {.x = of->d_y, .weight = scratch, .y = of->d_x, .rows = of->rows, .depth = of->outputs,
                       .columns = of->inputs};
        by_rows(&job, threads);
    }
    if (of->d_w) {
        Count room = ROWS * (of->inputs + of->outputs + TILE);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int part = 0; part < threads; part++)
            weigh(of->d_y, of->x, of->d_w, of->rows, of->outputs, of->inputs, of->outputs * part / threads,
                  of->outputs * (part + 1) / threads, scratch + part * room);
    }
}
