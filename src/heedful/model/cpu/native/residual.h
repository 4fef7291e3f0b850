/* What joins the parts of a layer in training, forwards and backwards: y = norm(x + dropout(v)), or norm(x).

   Neither the sum nor what norm makes of it before its weights is kept: y tells it, as long as it can be divided by the
   weights. */
#pragma once

#include "training.h"

typedef struct {
    const float *x, *v, *weight, *bias; /* v and bias may be NULL */
    float *y, *factors;                 /* factors: what each row was multiplied by */
    const float *d_y;                   /* on the way back */
    float *d_x, *d_v, *d_weight;        /* d_weight: of the weight, then of the bias; with room for each thread */
    Count rows, width;                  /* width is a multiple of sixteen */
    int rms;
    float eps, factor;                  /* of what is not dropped */
    uint32_t dropped, seed, second;
} AddNorm;

#define LEAST_WEIGHT 1e-20f
#define MOST_BIAS 32 /* times the weight: five of y's 24 bits may be lost */

/* Whether the input of a norm can be recovered from its output. */
FAST static int is_invertible(const float *weight, const float *bias, Count width) {
    int fine = 1;
    for (Count i = 0; i < width; i++) {
        float size = fabsf(weight[i]);
        fine &= size > LEAST_WEIGHT && size < 1e20f && (!bias || fabsf(bias[i]) <= MOST_BIAS * size);
    }
    return fine;
}

/* `call` for the numbers of a row from `i` on, a line of them, the `part`s of sixteen in turn. */
#define EACH_LINE(call)                                           \
    for (Count start = 0; start < width; start += PANEL)          \
        for (int part = 0; part < PARTS; part++) {                \
            Count i = start + LANES * part;                       \
            call;                                                 \
        }

INLINE void add_norm_row(const AddNorm *of, Count row) {
    Count width = of->width, at = row * width;
    const float *x = of->x + at, *v = of->v + at;
    float *y = of->y + at, mean = 0;
    if (of->v) {
        if (of->dropped)
            drop_part(of->x, of->v, of->y, at, at + width, of->dropped, of->factor, of->seed, of->second);
        else
            EACH_LINE(store_line(y + i, load_line(x + i) + load_line(v + i)));
        x = y;
    }
    Line sums[PARTS] = {{0}}, squares[PARTS] = {{0}};
    if (!of->rms) {
        EACH_LINE(sums[part] += load_line(x + i));
        mean = sum_of_lines(sums, PARTS) / width;
    }
    EACH_LINE(Line apart = load_line(x + i) - mean; squares[part] += apart * apart);
    float factor = of->factors[row] = 1 / sqrtf(sum_of_lines(squares, PARTS) / width + of->eps);
    if (of->bias)
        EACH_LINE(store_line(y + i, (load_line(x + i) - mean) * factor * load_line(of->weight + i) +
                                        load_line(of->bias + i)))
    else
        EACH_LINE(store_line(y + i, (load_line(x + i) - mean) * factor * load_line(of->weight + i)));
}

/* With z what y is before weight and bias, and g = dy * weight:  ds = factor (g - mean(g) - z mean(g z)).
   `inverse` is 1 / weight. */
INLINE void add_norm_row_back(const AddNorm *of, const float *inverse, const float *bias, float *d_weight, Count row) {
    Count width = of->width, at = row * width;
    const float *y = of->y + at, *d_y = of->d_y + at;
    float *d_x = of->d_x + at, *d_bias = d_weight + width;
    Line sums[PARTS] = {{0}}, products[PARTS] = {{0}};
    EACH_LINE(Line z = (load_line(y + i) - load_line(bias + i)) * load_line(inverse + i); Line d = load_line(d_y + i);
              Line g = d * load_line(of->weight + i); sums[part] += g; products[part] += g * z;
              store_line(d_weight + i, load_line(d_weight + i) + d * z);
              store_line(d_bias + i, load_line(d_bias + i) + d));
    float factor = of->factors[row], mean = of->rms ? 0 : sum_of_lines(sums, PARTS) / width;
    float along = sum_of_lines(products, PARTS) / width;
    EACH_LINE(Line z = (load_line(y + i) - load_line(bias + i)) * load_line(inverse + i);
              store_line(d_x + i, (load_line(d_y + i) * load_line(of->weight + i) - mean - z * along) * factor));
    if (of->v && of->dropped)
        drop_part(NULL, of->d_x, of->d_v, at, at + width, of->dropped, of->factor, of->seed, of->second);
}

FAST static void add_norm(const AddNorm *of, int threads) {
    threads = threads_for(of->rows * of->width * 16, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        Count row = of->rows * part / threads, end = of->rows * (part + 1) / threads, width = of->width;
        float inverse[width], none[width], *d_weight = of->d_weight + part * 2 * width;
        if (of->d_y) {
            for (Count i = 0; i < width; i++) inverse[i] = 1 / of->weight[i], none[i] = 0;
            memset(d_weight, 0, 2 * width * sizeof(float));
            for (; row < end; row++) add_norm_row_back(of, inverse, of->bias ? of->bias : none, d_weight, row);
        } else
            for (; row < end; row++) add_norm_row(of, row);
    }
    for (int part = 1; of->d_y && part < threads; part++)
        for (Count i = 0; i < 2 * of->width; i++) of->d_weight[i] += of->d_weight[part * 2 * of->width + i];
}
