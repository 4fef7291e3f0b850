/* Products of a matrix with few rows or many. The weights lie in panels: sixteen outputs side by side, one input after
   the other, as they are read. They are float32, or int8 with a scale for each output. A row's numbers do not depend on
   the rows beside it. */
#pragma once

#include "vectors.h"

#define PANEL 16        /* outputs side by side */
#define TILE 6          /* rows at once: 6 x 16 sums are in registers */
#define DEEP 512        /* inputs at once: those of 16 outputs stay in the nearest cache */
#define HIGH 192        /* rows at once: 512 numbers of each stay in the next one */

/* y = x W + b, or y + x W + b. */
typedef struct {
    const float *x;       /* rows depth */
    const int16_t *whole; /* the same as whole numbers, for int8 weights */
    const float *steps;   /* and what one of them is worth, for each row */
    const void *weight;   /* as in `Map` */
    const float *scales;  /* of int8 weights, one for each output */
    const float *bias;    /* filled up with zeros like the weights, or NULL */
    float *y;             /* rows columns */
    Count rows, depth, columns;
    int add, relu;
} Product;

INLINE void begin(int rows, Eight sums[TILE][2], const float *y, Count stride, const float *bias, int add) {
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            Eight sum = {0};
            if (add) sum += load(y + row * stride + 8 * half);
            if (bias) sum += load(bias + 8 * half);
            sums[row][half] = sum;
        }
}

INLINE void end(int rows, Eight sums[TILE][2], float *y, Count stride, int relu) {
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            Eight sum = sums[row][half];
            if (relu) sum = (Eight)((Whole)sum & (sum > 0));
            store(y + row * stride + 8 * half, sum);
        }
}

INLINE void add_floats(int rows, Eight sums[TILE][2], const float *x, Count stride, const float *w, Count depth) {
    for (Count k = 0; k < depth; k++) {
        Eight left = load(w + k * PANEL), right = load(w + k * PANEL + 8);
        for (int row = 0; row < rows; row++) {
            sums[row][0] += x[row * stride + k] * left;
            sums[row][1] += x[row * stride + k] * right;
        }
    }
}

/* Sums of whole numbers are exact: 512 products of 15 bits by 7 fit into 31. */
INLINE void sum_int8(int rows, Whole exact[TILE][2], const int16_t *x, Count stride, const int8_t *w, Count depth) {
    for (int row = 0; row < rows; row++) exact[row][0] = exact[row][1] = (Whole){0};
    for (Count k = 0; k < depth; k += 2) { /* depth is even */
#if defined(__x86_64__)
        __m256i left = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + k * PANEL)));
        __m256i right = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + k * PANEL + 16)));
        for (int row = 0; row < rows; row++) {
            int32_t pair;
            memcpy(&pair, x + row * stride + k, 4);
            __m256i both = _mm256_set1_epi32(pair);
            exact[row][0] += (Whole)_mm256_madd_epi16(both, left);
            exact[row][1] += (Whole)_mm256_madd_epi16(both, right);
            __asm__("" : "+x"(exact[row][0]), "+x"(exact[row][1])); /* one row after the other, or registers run out */
        }
#else
        for (int row = 0; row < rows; row++) {
            const int16_t *pair = x + row * stride + k;
            for (int column = 0; column < PANEL; column++) {
                const int8_t *both = w + k * PANEL + 2 * column;
                exact[row][column / 8][column % 8] += pair[0] * both[0] + pair[1] * both[1];
            }
        }
#endif
    }
}

INLINE void tile(int rows, const Product *job, Count row, Count panel, Count from, Count depth) {
    Count column = panel * PANEL, room = job->columns - column, stride = job->columns;
    int last = from + depth == job->depth, add = job->add || from > 0;
    const float *bias = job->bias && !from ? job->bias + column : NULL;
    float *y = job->y + row * stride + column, edge[TILE * PANEL];
    if (room < PANEL) { /* fewer than sixteen are left */
        for (int i = 0; i < rows * PANEL; i++) edge[i] = i % PANEL < room ? y[i / PANEL * stride + i % PANEL] : 0;
        y = edge, stride = PANEL;
    }
    Eight sums[TILE][2];
    Count start = panel * job->depth * PANEL + from * PANEL, place = row * job->depth + from;
    if (job->whole) {
        Whole exact[TILE][2];
        sum_int8(rows, exact, job->whole + place, job->depth, (const int8_t *)job->weight + start, depth);
        begin(rows, sums, y, stride, bias, add);
        for (int one = 0; one < rows; one++)
            for (int half = 0; half < 2; half++)
                sums[one][half] += __builtin_convertvector(exact[one][half], Eight) *
                                   (job->steps[row + one] * load(job->scales + column + 8 * half));
    } else {
        begin(rows, sums, y, stride, bias, add);
        add_floats(rows, sums, job->x + place, job->depth, (const float *)job->weight + start, depth);
    }
    end(rows, sums, y, stride, job->relu && last);
    if (room < PANEL)
        for (int i = 0; i < rows * PANEL; i++)
            if (i % PANEL < room) job->y[(row + i / PANEL) * job->columns + column + i % PANEL] = edge[i];
}

FAST static void tiles(const Product *job, Count row, Count end, Count panel, Count from, Count depth) {
    for (; row + TILE <= end; row += TILE) tile(TILE, job, row, panel, from, depth);
    switch (end - row) {
    case 5: tile(5, job, row, panel, from, depth); break;
    case 4: tile(4, job, row, panel, from, depth); break;
    case 3: tile(3, job, row, panel, from, depth); break;
    case 2: tile(2, job, row, panel, from, depth); break;
    case 1: tile(1, job, row, panel, from, depth); break;
    }
}

FAST static void panels(const Product *job, Count first, Count end) {
    Count deep = job->rows <= TILE && !job->whole ? job->depth : DEEP; /* few rows: weights are read straight through */
    for (Count row = 0; row < job->rows; row += HIGH) {
        Count until = row + HIGH < job->rows ? row + HIGH : job->rows;
        for (Count from = 0; from < job->depth; from += deep)
            for (Count panel = first; panel < end; panel++)
                tiles(job, row, until, panel, from, from + deep < job->depth ? deep : job->depth - from);
    }
}

/* Rows as whole numbers of 15 bits and a sign; `depth` may be one more than there is, then it ends with a zero. */
FAST static void round_rows(const float *x, Count rows, Count given, Count depth, int16_t *whole, float *steps) {
    const Whole sign = (Whole){0} + INT32_MIN, half = (Whole)((Eight){0} + 0.5f);
    for (Count row = 0; row < rows; row++, x += given, whole += depth) {
        float most = 0;
#pragma omp simd reduction(max : most)
        for (Count k = 0; k < given; k++) {
            float size = x[k] < 0 ? -x[k] : x[k];
            most = size > most ? size : most;
        }
        float factor = most > 1e-30f ? 32767 / most : 0;
        steps[row] = most / 32767;
        Count k = 0;
        for (; k + 8 <= given; k += 8) {
            Eight value = load(x + k) * factor;
            value += (Eight)(((Whole)value & sign) | half); /* conversion cuts off what is behind the point */
            *(Short *)(whole + k) = __builtin_convertvector(__builtin_convertvector(value, Whole), Short);
        }
        for (; k < given; k++) whole[k] = (int16_t)(x[k] * factor + (x[k] < 0 ? -0.5f : 0.5f));
        if (given < depth) whole[given] = 0;
    }
}

FAST static void product(const Product *job, int threads) {
    Count count = (job->columns + PANEL - 1) / PANEL;
    if (threads < 2) {
        panels(job, 0, count);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) panels(job, count * part / threads, count * (part + 1) / threads);
}

/* W and b. quick.py writes it as five numbers. */
typedef struct {
    const void *weight; /* panels depth 16, or panels depth/2 16 2 in int8; the last panel is filled with zeros */
    const float *scales, *bias;
    Count depth, columns;
} Map;

/* `rounded`: room for int8's whole numbers, rows (2 + depth / 2). */
FAST static void apply(const Map *map, const float *x, float *y, Count rows, int add, int relu, int threads,
                       float *rounded) {
    Product job = {.x = x, .weight = map->weight, .scales = map->scales, .bias = map->bias, .y = y, .rows = rows,
                   .depth = map->depth, .columns = map->columns, .add = add, .relu = relu};
    if (map->scales) { /* int8 */
        int16_t *whole = (int16_t *)(rounded + rows);
        job.depth += job.depth % 2, job.steps = rounded, job.whole = whole;
        round_rows(x, rows, map->depth, job.depth, whole, rounded);
    }
    product(&job, threads_for(rows * job.depth * job.columns, threads));
}
