/* Products of a matrix with few rows or many. The weights lie in panels: sixteen outputs side by side, one input after
   the other, as they are read. They are float32, or int8 with a scale for each output. A row's numbers do not depend on
   the rows beside it. */
#pragma once

#include "vectors.h"

#define PANEL 16              /* outputs side by side */
#define PARTS (PANEL / LANES) /* of a panel, each in a register */
#define TILE (12 / PARTS)     /* rows at once: 12 registers hold their sums */
#define SUMS (PARTS == 2 ? 12 : 24) /* the most that registers hold beside the rest */
#define ACROSS 4              /* panels at once, at most, where rows are few: sums that do not wait for each other */
#define DEEP 512              /* inputs at once: those of 16 outputs stay in the nearest cache */
#define HIGH 192              /* rows at once: 512 numbers of each stay in the next one */

/* CASE for each number of rows that is less than a tile. */
#if PARTS == 2
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#else
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11)
#endif

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
    Count stride;         /* from a row of x to the next, once it is cut into blocks */
} Product;

INLINE void begin(int rows, int parts, Line sums[][ACROSS * PARTS], const float *y, Count stride, const float *bias,
                  int add) {
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < parts; part++) {
            Line sum = {0};
            if (add) sum += load_line(y + row * stride + LANES * part);
            if (bias) sum += load_line(bias + LANES * part);
            sums[row][part] = sum;
        }
}

INLINE void end(int rows, int parts, Line sums[][ACROSS * PARTS], float *y, Count stride, int relu) {
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < parts; part++) {
            Line sum = sums[row][part];
            if (relu) sum = (Line)((WholeLine)sum & ~(sum <= 0)); /* what is not a number stays so */
            store_line(y + row * stride + LANES * part, sum);
        }
}

/* Sums of x[row * across + k * along] times a line of each panel; `panel`: numbers from one to the next, `step`: from one
   line to the next. */
INLINE void add_floats(int rows, int wide, Line sums[][ACROSS * PARTS], const float *x, Count across, Count along,
                       const float *w, Count panel, Count step, Count depth) {
    const int together = wide * PARTS <= 2 ? wide : 1; /* panels whose lines wait in registers for all rows */
    for (Count k = 0; k < depth; k++, x += along, w += step)
        for (int one = 0; one < wide; one += together) {
            Line lines[ACROSS * PARTS];
            for (int part = 0; part < together * PARTS; part++)
                lines[part] = load_line(w + (one + part / PARTS) * panel + part % PARTS * LANES);
            if (rows == TILE && panel) __builtin_prefetch(w + panel); /* with fewer rows, it takes longer */
            for (int row = 0; row < rows; row++)
                for (int part = 0; part < together * PARTS; part++)
                    sums[row][one * PARTS + part] += x[row * across] * lines[part];
        }
}

#if defined(AVX512)
typedef __m512i Widened;
INLINE Widened widened(const int8_t *at) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)at)); }
INLINE WholeLine add_pairs(WholeLine sum, const int16_t *pair, Widened line) {
    int32_t both;
    memcpy(&both, pair, 4);
    return (WholeLine)_mm512_dpwssd_epi32((__m512i)sum, _mm512_set1_epi32(both), line);
}
#elif defined(__x86_64__)
typedef __m256i Widened;
INLINE Widened widened(const int8_t *at) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at)); }
INLINE WholeLine add_pairs(WholeLine sum, const int16_t *pair, Widened line) {
    int32_t both;
    memcpy(&both, pair, 4);
    sum += (WholeLine)_mm256_madd_epi16(_mm256_set1_epi32(both), line);
    __asm__("" : "+x"(sum)); /* one after the other, or registers run out */
    return sum;
}
#endif

/* Sums of whole numbers are exact: 512 products of 15 bits by 7 fit into 31. */
INLINE void sum_int8(int rows, int across, WholeLine exact[][ACROSS * PARTS], const int16_t *x, Count stride,
                     const int8_t *w, Count panel, Count depth) {
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < across * PARTS; part++) exact[row][part] = (WholeLine){0};
    for (Count k = 0; k < depth; k += 2) /* depth is even */
        for (int one = 0; one < across; one++) {
            const int8_t *at = w + one * panel + k * PANEL;
            if (rows > 2) __builtin_prefetch(at + across * panel); /* what comes next, from a farther cache */
#if defined(__x86_64__)
            Widened lines[PARTS];
            for (int part = 0; part < PARTS; part++) lines[part] = widened(at + 2 * LANES * part);
#endif
            for (int row = 0; row < rows; row++)
                for (int part = 0; part < PARTS; part++) {
                    const int16_t *pair = x + row * stride + k;
                    WholeLine *sum = &exact[row][one * PARTS + part];
#if defined(__x86_64__)
                    *sum = add_pairs(*sum, pair, lines[part]);
#else
                    for (int lane = 0; lane < LANES; lane++) {
                        const int8_t *both = at + 2 * (LANES * part + lane);
                        (*sum)[lane] += pair[0] * both[0] + pair[1] * both[1];
                    }
#endif
                }
        }
}

/* `rows` rows of `across` panels. */
INLINE void tile(int rows, int across, const Product *job, Count row, Count panel, Count from, Count depth) {
    Count column = panel * PANEL, room = job->columns - column, stride = job->columns, size = job->depth * PANEL;
    int last = from + depth == job->depth, add = job->add || from > 0, parts = across * PARTS;
    const float *bias = job->bias && !from ? job->bias + column : NULL;
    float *y = job->y + row * stride + column, edge[TILE * PANEL];
    if (across == 1 && room < PANEL) { /* fewer than sixteen are left */
        for (int i = 0; i < rows * PANEL; i++) edge[i] = i % PANEL < room ? y[i / PANEL * stride + i % PANEL] : 0;
        y = edge, stride = PANEL;
    }
    Line sums[TILE][ACROSS * PARTS];
    Count start = panel * size + from * PANEL, place = row * job->stride; /* x begins at `from` */
    if (job->whole) {
        WholeLine exact[TILE][ACROSS * PARTS];
        sum_int8(rows, across, exact, job->whole + place, job->stride, (const int8_t *)job->weight + start, size, depth);
        begin(rows, parts, sums, y, stride, bias, add);
        for (int one = 0; one < rows; one++)
            for (int part = 0; part < parts; part++)
                sums[one][part] += __builtin_convertvector(exact[one][part], Line) *
                                   (job->steps[row + one] * load_line(job->scales + column + LANES * part));
    } else {
        begin(rows, parts, sums, y, stride, bias, add);
        add_floats(rows, across, sums, job->x + place, job->stride, 1, (const float *)job->weight + start, size, PANEL,
                   depth);
    }
    end(rows, parts, sums, y, stride, job->relu && last);
    if (across == 1 && room < PANEL)
        for (int i = 0; i < rows * PANEL; i++)
            if (i % PANEL < room) job->y[(row + i / PANEL) * job->columns + column + i % PANEL] = edge[i];
}

/* Fewer rows than a tile, in all panels from `panel` to `end`. */
INLINE void few(int rows, const Product *job, Count row, Count panel, Count end, Count from, Count depth) {
    const int each = rows * PARTS, across = 4 * each <= SUMS ? 4 : 2 * each <= SUMS ? 2 : 1;
    Count whole = job->columns / PANEL < end ? job->columns / PANEL : end; /* the last may not be full */
    for (; panel + across <= whole; panel += across) tile(rows, across, job, row, panel, from, depth);
    for (; panel < end; panel++) tile(rows, 1, job, row, panel, from, depth);
}

FAST static void tiles(const Product *job, Count first, Count end, Count from, Count depth) {
    Count rest = job->rows % TILE;
    for (; first < end; first += ACROSS) { /* all rows while these weights are near: from memory they come once */
        Count until = first + ACROSS < end ? first + ACROSS : end;
        for (Count panel = first; panel < until; panel++)
            for (Count row = 0; row + TILE <= job->rows; row += TILE) tile(TILE, 1, job, row, panel, from, depth);
        switch (rest) {
#define CASE(count) case count: few(count, job, job->rows - rest, first, until, from, depth); break;
            CASES
#undef CASE
        }
    }
}

/* Some rows of x and `depth` of its inputs, which begin at `x` and are `stride` apart. */
FAST static void block(const Product *job, Count first, Count end, Count row, Count from, Count depth, const void *x,
                       Count stride) {
    Product some = *job;
    some.rows = row + HIGH < job->rows ? HIGH : job->rows - row;
    some.y += row * job->columns, some.stride = stride;
    if (job->whole)
        some.whole = x, some.steps += row;
    else
        some.x = x;
    tiles(&some, first, end, from, depth);
}

/* The same with a copy of these, for rows a multiple of 4,096 bytes apart: all would want the same places of the cache. */
FAST static __attribute__((noinline)) void block_apart(const Product *job, Count first, Count end, Count row, Count from,
                                                       Count depth, const void *x, Count stride) {
    char copy[HIGH * (DEEP + PANEL) * sizeof(float)];
    Count size = job->whole ? sizeof(int16_t) : sizeof(float), apart = DEEP + PANEL;
    for (Count one = 0; one < HIGH && row + one < job->rows; one++)
        memcpy(copy + one * apart * size, (const char *)x + one * stride * size, depth * size);
    block(job, first, end, row, from, depth, copy, apart);
}

FAST static void panels(const Product *job, Count first, Count end) {
    Count deep = job->rows <= TILE && !job->whole ? job->depth : DEEP; /* few rows: weights are read straight through */
    Count size = job->whole ? sizeof(int16_t) : sizeof(float);
    int copied = job->rows > TILE && job->depth * size % 4096 == 0;
    for (Count row = 0; row < job->rows; row += HIGH)
        for (Count from = 0; from < job->depth; from += deep) {
            Count depth = from + deep < job->depth ? deep : job->depth - from, place = row * job->depth + from;
            const void *x = job->whole ? (const void *)(job->whole + place) : (const void *)(job->x + place);
            (copied ? block_apart : block)(job, first, end, row, from, depth, x, job->depth);
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
