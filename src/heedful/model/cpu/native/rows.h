/* What is done to each row by itself. */
#pragma once

#include "product.h"

FAST static void norm(const Norm *of, int rms, float eps, const float *x, float *y, Count width) {
    float mean = 0, square = 0;
    if (!rms) {
#pragma omp simd reduction(+ : mean)
        for (Count i = 0; i < width; i++) mean += x[i];
        mean /= width;
    }
#pragma omp simd reduction(+ : square)
    for (Count i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf(square / width + eps);
#pragma omp simd
    for (Count i = 0; i < width; i++) y[i] = (x[i] - mean) * factor * of->weight[i] + (of->bias ? of->bias[i] : 0);
}

/* In place; `size` is a multiple of eight. */
INLINE void softmax(float *x, Count size) {
    float most = largest_of(x, size);
    Eight sum = {0};
    for (Count i = 0; i < size; i += 8) {
        Eight value = exponential(load(x + i) - most);
        store(x + i, value);
        sum += value;
    }
    float total = sum_of(sum), factor = total > 0 ? 1 / total : 0; /* where there is nothing to see, nothing is seen */
    for (Count i = 0; i < size; i += 8) store(x + i, load(x + i) * factor);
}

FAST static void log_softmax(float *x, Count size) {
    float most = largest_of(x, size);
    Eight sum = {0};
    Count i = 0;
    for (; i + 8 <= size; i += 8) sum += exponential(load(x + i) - most);
    Eight rest = sum - INFINITY;
    for (int lane = 0; i < size; i++, lane++) rest[lane] = x[i] - most;
    float log_sum = logf(sum_of(sum + exponential(rest)));
#pragma omp simd
    for (Count place = 0; place < size; place++) x[place] = x[place] - most - log_sum;
}

/* In place. Gated: rows 2 width -> rows width, the function of the first half times the second. */
FAST static void activate(int kind, int gated, float *x, Count rows, Count width) {
    for (Count row = 0; row < rows; row++) {
        const float *from = x + row * width * (1 + gated);
        float *to = x + row * width;
        for (Count i = 0; i < width; i += 8) {
            Eight value = function(kind, some_of(from + i, width - i));
            if (gated) value *= some_of(from + width + i, width - i);
            put(to + i, value, width - i);
        }
    }
}

/* The vectors of tokens, from a table (or, in int8, from panels), times a factor, and what says where they stand:
   `period` places again and again. False if a token is not in the table. */
FAST static int embed(const int64_t *tokens, const void *table, const float *scales, float factor, const float *places,
                      Count period, float *x, Count rows, Count width, Count size) {
    for (Count row = 0; row < rows; row++, x += width) {
        Count token = tokens[row];
        if (token < 0 || token >= size) return 0;
        const float *place = places + row % period * width, *vector = (const float *)table + token * width;
        if (scales) {
            const int8_t *panel = (const int8_t *)table + token / PANEL * PANEL * (width + width % 2) + token % PANEL * 2;
            for (Count i = 0; i < width; i++)
                x[i] = panel[i / 2 * 2 * PANEL + i % 2] * (scales[token] * factor) + place[i];
        } else
            for (Count i = 0; i < width; i++) x[i] = vector[i] * factor + place[i];
    }
    return 1;
}

/* The largest of beams * size numbers and where they are, the largest first; of equal ones the first. `offsets` are added
   to the numbers of each beam, and may be NULL. */
FAST static void largest(const float *x, const float *offsets, Count beams, Count size, Count count, float *values,
                         int64_t *places) {
    Count found = 0;
    for (Count beam = 0; beam < beams; beam++, x += size) {
        float offset = offsets ? offsets[beam] : 0;
        for (Count start = 0; start < size; start += 64) {
            Count end = start + 64 < size ? start + 64 : size;
            if (found == count && !(largest_of(x + start, end - start) + offset > values[count - 1])) continue;
            for (Count i = start; i < end; i++) {
                float value = x[i] + offset;
                if (found == count && !(value > values[count - 1])) continue;
                Count at = found < count ? found++ : count - 1;
                for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], places[at] = places[at - 1];
                values[at] = value, places[at] = beam * size + i;
            }
        }
    }
}
