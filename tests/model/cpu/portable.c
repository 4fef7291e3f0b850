/* The kernels without the instructions of any processor, compared with plain loops in double precision: what runs on
   arm64. Compiled by test_portable.py for this processor, and for arm64 where there is a compiler for it. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef __x86_64__ /* after the system's headers, which need it: ours then take the portable path */
#include "layers.h"

static uint32_t state = 1;
static int failures = 0;

static float chance(void) { /* evenly from -1 to 1 */
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static float *numbers(Count size, int filled) {
    float *x = aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64);
    for (Count i = 0; i < size; i++) x[i] = filled ? chance() : 0;
    return x;
}

static void compare(const char *what, const float *found, const double *wanted, Count size, double tolerance) {
    double most = 0, apart = 0;
    for (Count i = 0; i < size; i++) {
        most = fmax(most, fabs(wanted[i]));
        apart = fmax(apart, isfinite(found[i]) ? fabs(found[i] - wanted[i]) : INFINITY);
    }
    int fine = most > 0 && apart <= tolerance * most;
    printf("%-28s %8.1e of %8.1e%s\n", what, apart, most, fine ? "" : "   WRONG");
    failures += !fine;
}

/* W x + b in panels, in float32 or int8. */
static void products(Count rows, Count depth, Count columns, int int8, int threads) {
    Count panels = (columns + PANEL - 1) / PANEL, pairs = (depth + 1) / 2;
    float *x = numbers(rows * depth, 1), *w = numbers(columns * depth, 1), *y = numbers(rows * columns, 0);
    float *bias = numbers(panels * PANEL, 1), *packed = numbers(panels * PANEL * depth, 0);
    float *scales = numbers(panels * PANEL, 0), *rounded = numbers(rows * (3 + depth / 2), 0);
    int8_t *whole = calloc(panels * PANEL, 2 * pairs);
    double *wanted = calloc(rows * columns, sizeof(double));
    for (Count j = 0; j < columns; j++) scales[j] = 1.0f / (127 + j % 3);
    for (Count j = 0; j < columns; j++)
        for (Count k = 0; k < depth; k++) {
            if (int8) {
                int8_t value = (int8_t)lroundf(w[j * depth + k] * 127);
                w[j * depth + k] = value * scales[j];
                whole[((j / PANEL * pairs + k / 2) * PANEL + j % PANEL) * 2 + k % 2] = value;
            }
            packed[(j / PANEL * depth + k) * PANEL + j % PANEL] = w[j * depth + k];
        }
    for (Count i = 0; i < rows; i++)
        for (Count j = 0; j < columns; j++) {
            double sum = bias[j];
            for (Count k = 0; k < depth; k++) sum += (double)x[i * depth + k] * w[j * depth + k];
            wanted[i * columns + j] = sum > 0 ? sum : 0;
        }
    Map map = {.weight = packed, .bias = bias, .depth = depth, .columns = columns};
    if (int8) map.weight = whole, map.scales = scales;
    apply(&map, x, y, rows, 0, 1, threads, rounded);
    compare(int8 ? "product, int8" : "product", y, wanted, rows * columns, int8 ? 1e-4 : 1e-5);
}

static void norms(Count width, int rms) {
    float *x = numbers(width, 1), *weight = numbers(width, 1), *bias = numbers(width, 1), *y = numbers(width, 0);
    double *wanted = calloc(width, sizeof(double)), mean = 0, square = 0, eps = 1e-5;
    for (Count i = 0; i < width && !rms; i++) mean += (double)x[i] / width;
    for (Count i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean) / width;
    for (Count i = 0; i < width; i++) wanted[i] = (x[i] - mean) / sqrt(square + eps) * weight[i] + bias[i];
    Norm of = {.weight = weight, .bias = bias};
    norm(&of, rms, (float)eps, x, y, width);
    compare(rms ? "RMSNorm" : "norm", y, wanted, width, 1e-5);
}

/* One head, forwards and backwards. */
static void attention(Count queries, Count keys, Count head, int causal, int threads) {
    float *part[8]; /* query, key, value, y, and their gradients */
    Count rows[] = {queries, keys, keys, queries};
    double *wanted[8];
    for (int i = 0; i < 8; i++) {
        part[i] = numbers(rows[i % 4] * head, i % 4 < 3 ? i < 4 : i == 7);
        wanted[i] = calloc(rows[i % 4] * head, sizeof(double));
    }
    float *sums = numbers(queries, 0), *scratch = numbers(threads * attention_room(keys, head), 0);
    double scale = 1 / sqrt((double)head), *p = calloc(keys, sizeof(double)), *d_p = calloc(keys, sizeof(double));
    for (Count i = 0; i < queries; i++) {
        Count seen = causal ? i + 1 : keys;
        double total = 0, mean = 0;
        for (Count j = 0; j < seen; j++) {
            double score = 0;
            for (Count k = 0; k < head; k++) score += (double)part[0][i * head + k] * part[1][j * head + k];
            total += p[j] = exp(score * scale);
        }
        for (Count j = 0; j < seen; j++) {
            p[j] /= total, d_p[j] = 0;
            for (Count k = 0; k < head; k++) {
                wanted[3][i * head + k] += p[j] * part[2][j * head + k];
                wanted[6][j * head + k] += p[j] * part[7][i * head + k];
                d_p[j] += (double)part[7][i * head + k] * part[2][j * head + k];
            }
            mean += p[j] * d_p[j];
        }
        for (Count j = 0; j < seen; j++)
            for (Count k = 0; k < head; k++) {
                wanted[4][i * head + k] += p[j] * (d_p[j] - mean) * scale * part[1][j * head + k];
                wanted[5][j * head + k] += p[j] * (d_p[j] - mean) * scale * part[0][i * head + k];
            }
    }
    View view[8];
    for (int i = 0; i < 8; i++) view[i] = (View){.at = part[i], .batch = 0, .head = 0, .time = head};
    Attention of = {.query = view[0], .key = view[1], .value = view[2], .y = view[3], .d_query = view[4],
                    .d_key = view[5], .d_value = view[6], .d_y = view[7], .sums = sums, .batch = 1, .heads = 1,
                    .queries = queries, .keys = keys, .head = head, .scale = (float)scale, .causal = causal};
    attend_all(&of, scratch, 0, threads);
    attend_all(&of, scratch, 1, threads);
    const char *names[] = {"", "", "", "attention", "its queries' gradients", "its keys'", "its values'"};
    for (int i = 3; i < 7; i++) compare(names[i], part[i], wanted[i], rows[i % 4] * head, 1e-4);
}

int main(void) {
    for (int int8 = 0; int8 < 2; int8++)
        for (int threads = 1; threads < 3; threads++) {
            products(1, 67, 53, int8, threads);
            products(37, 131, 257, int8, threads);
            products(211, 521, 96, int8, threads); /* deeper and higher than a block */
        }
    norms(61, 0), norms(128, 1);
    attention(19, 43, 32, 0, 1), attention(131, 131, 16, 1, 2), attention(101, 211, 64, 0, 2);
    printf("%s: %d wrong\n", PROCESSOR, failures);
    return failures > 0;
}
