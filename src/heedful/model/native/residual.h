/* What joins the parts of a layer in training, forwards and backwards: y = norm(x + dropout(v)), or norm(x).

   Neither the sum nor what norm makes of it before its weights is kept: y tells it, as long as it can be divided by the
   weights. */
#pragma once

#include "training.h"

typedef struct {
    const float *x, *v, *weight, *bias; /* v and bias may be NULL */
    float *y, *factors;                 /* factors: what each row was multiplied by */
    const float *d_y;                   /* on the way back */
    float *d_x, *d_v, *d_weight;        /* d_weight: for each thread, of the weight and then of the bias */
    Count rows, width;                  /* width is a multiple of sixteen */
    int rms;
    float eps, factor;                  /* of what is not dropped */
    uint32_t dropped, seed, second;
} Joint;

#define LEAST_WEIGHT 1e-20f
#define MOST_BIAS 32 /* times the weight: five of y's 24 bits may be lost */

/* Whether what a norm was given can be told from what it made. */
FAST static int can_be_told(const float *weight, const float *bias, Count width) {
    int fine = 1;
    for (Count i = 0; i < width; i++) {
        float size = fabsf(weight[i]);
        fine &= size > LEAST_WEIGHT && size < 1e20f && (!bias || fabsf(bias[i]) <= MOST_BIAS * size);
    }
    return fine;
}

FAST static void join_row(const Joint *of, Count row) {
    Count width = of->width, at = row * width;
    const float *x = of->x + at;
    float *y = of->y + at, mean = 0;
    if (of->v) {
        if (of->dropped)
            drop_part(of->x, of->v, of->y, at, at + width, of->dropped, of->factor, of->seed, of->second);
        else
            for (Count i = 0; i < width; i += 8) store(y + i, load(x + i) + load(of->v + at + i));
        x = y;
    }
    Eight sums = {0}, squares = {0};
    if (!of->rms) {
        for (Count i = 0; i < width; i += 8) sums += load(x + i);
        mean = sum_of(sums) / width;
    }
    for (Count i = 0; i < width; i += 8) {
        Eight apart = load(x + i) - mean;
        squares += apart * apart;
    }
    float factor = of->factors[row] = 1 / sqrtf(sum_of(squares) / width + of->eps);
    for (Count i = 0; i < width; i += 8) {
        Eight value = (load(x + i) - mean) * factor * load(of->weight + i);
        store(y + i, of->bias ? value + load(of->bias + i) : value);
    }
}

/* With z what y is before weight and bias, and g = dy * weight:  ds = factor (g - mean(g) - z mean(g z)). */
FAST static void join_row_back(const Joint *of, const float *inverse, float *d_weight, Count row) {
    Count width = of->width, at = row * width;
    const float *y = of->y + at, *d_y = of->d_y + at;
    float *d_x = of->d_x + at, *d_bias = d_weight + width;
    Eight sums = {0}, products = {0};
    for (Count i = 0; i < width; i += 8) {
        Eight z = (of->bias ? load(y + i) - load(of->bias + i) : load(y + i)) * load(inverse + i), d = load(d_y + i);
        Eight g = d * load(of->weight + i);
        sums += g, products += g * z;
        store(d_weight + i, load(d_weight + i) + d * z);
        if (of->bias) store(d_bias + i, load(d_bias + i) + d);
    }
    float factor = of->factors[row], mean = of->rms ? 0 : sum_of(sums) / width, along = sum_of(products) / width;
    for (Count i = 0; i < width; i += 8) {
        Eight z = (of->bias ? load(y + i) - load(of->bias + i) : load(y + i)) * load(inverse + i);
        store(d_x + i, (load(d_y + i) * load(of->weight + i) - mean - z * along) * factor);
    }
    if (of->v && of->dropped)
        drop_part(NULL, of->d_x, of->d_v, at, at + width, of->dropped, of->factor, of->seed, of->second);
}

FAST static void join(const Joint *of, int threads) {
    Count rows = of->rows;
    threads = threads_for(rows * of->width * 16, threads);
    if (!of->d_y) {
        EACH_ROW(join_row(of, row));
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        float inverse[of->width], *d_weight = of->d_weight + part * 2 * of->width;
        for (Count i = 0; i < of->width; i++) inverse[i] = 1 / of->weight[i];
        for (Count row = rows * part / threads; row < rows * (part + 1) / threads; row++)
            join_row_back(of, inverse, d_weight, row);
    }
}
