/* An encoder, and a step of a decoder, on a CPU: what quick.py lays out, and kernels.py hands over.

   A step of a small model is over in less time than torch takes to start its parts one by one, and products of few rows
   are where matrix libraries are at their weakest. Here weights lie in panels, as a step reads them: sixteen outputs
   side by side, one input after the other. Everything is float32; weights may be int8, each output with a scale.

   Plain C with the vectors of GCC and Clang. On x86-64 it asks for AVX2; elsewhere it takes what the compiler has. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2,fma")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline)) FAST

#define PANEL 16        /* outputs side by side */
#define TILE 6          /* rows at once: 6 x 16 sums are in registers */
#define DEEP 512        /* inputs at once: those of 16 outputs stay in the nearest cache */
#define HIGH 192        /* rows at once: 512 numbers of each stay in the next one */
#define LARGE (1 << 18) /* operations from which on several threads are worth it */

typedef float Eight __attribute__((vector_size(32)));
typedef float Loose __attribute__((vector_size(32), aligned(4), may_alias)); /* the same, anywhere in memory */
typedef int32_t Whole __attribute__((vector_size(32)));
typedef int16_t Short __attribute__((vector_size(16), aligned(2), may_alias));
typedef long long Count;

#define EACH_ROW _Pragma("omp parallel for num_threads(threads) if (threads > 1)") for (Count row = 0; row < rows; row++)

INLINE Eight load(const float *at) { return *(const Loose *)at; }
INLINE void store(float *at, Eight value) { *(Loose *)at = value; }

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

typedef struct {
    const float *weight, *bias;
} Norm;

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

INLINE float sum_of(Eight x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

/* e^x for x <= 0, within 2e-7 of it: 2^n from the exponent's bits, the rest from a polynomial (Cephes' coefficients).
   What is too small for a float is zero. */
INLINE Eight power(Eight x) {
    Whole n = __builtin_convertvector(x * 1.44269504f - 0.5f, Whole);
    Eight whole = __builtin_convertvector(n, Eight), rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Eight value = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = (value * rest * rest + rest + 1) * (Eight)((n + 127) << 23);
    return (Eight)((Whole)value & (x > -87));
}

INLINE float largest_of(const float *x, Count size) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (Count i = 0; i < size; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* In place; `size` is a multiple of eight. */
INLINE void softmax(float *x, Count size) {
    float most = largest_of(x, size);
    Eight sum = {0};
    for (Count i = 0; i < size; i += 8) {
        Eight value = power(load(x + i) - most);
        store(x + i, value);
        sum += value;
    }
    float factor = 1 / sum_of(sum);
    for (Count i = 0; i < size; i += 8) store(x + i, load(x + i) * factor);
}

FAST static void log_softmax(float *x, Count size) {
    float most = largest_of(x, size);
    Eight sum = {0};
    Count i = 0;
    for (; i + 8 <= size; i += 8) sum += power(load(x + i) - most);
    Eight rest = sum - INFINITY;
    for (int lane = 0; i < size; i++, lane++) rest[lane] = x[i] - most;
    float log_sum = logf(sum_of(sum + power(rest)));
#pragma omp simd
    for (Count place = 0; place < size; place++) x[place] = x[place] - most - log_sum;
}

INLINE float dot(const float *a, const float *b, Count size) {
    Eight sums = {0};
    for (Count i = 0; i < size; i += 8) sums += load(a + i) * load(b + i);
    return sum_of(sums);
}

/* y = sum of factors[i] * vectors[i], which stand `stride` apart, or at `places`. `width` is a multiple of eight. */
INLINE void mix(const float *factors, const float *vectors, Count stride, const Count *places, Count count, float *y,
                Count width) {
    Count from = 0;
    for (; from + 32 <= width; from += 32) {
        Eight sums[4] = {{0}};
        for (Count i = 0; i < count; i++) {
            const float *vector = vectors + (places ? places[i] : i * stride) + from;
            for (int part = 0; part < 4; part++) sums[part] += factors[i] * load(vector + 8 * part);
        }
        for (int part = 0; part < 4; part++) store(y + from + 8 * part, sums[part]);
    }
    for (; from < width; from += 8) {
        Eight sum = {0};
        for (Count i = 0; i < count; i++) sum += factors[i] * load(vectors + (places ? places[i] : i * stride) + from);
        store(y + from, sum);
    }
}

static Count filled(Count length) { return (length + 7) / 8 * 8; }

/* A row looks at what it has written: its newest key and value are put away, then all are looked at. */
typedef struct {
    const float *qkv;      /* rows 3 heads head */
    float *store;          /* room slots 2 heads head */
    const int32_t *origin; /* rows room: in which slot a row's token of each time stands; a beam moves nothing else */
    float *y;              /* rows heads head */
    Count heads, head, slots, room, length;
    float scale;
} Own;

FAST static void look_back(const Own *of, Count row) {
    Count width = of->heads * of->head, length = of->length, places[length];
    const float *qkv = of->qkv + row * 3 * width;
    float scores[filled(length)];
    memcpy(of->store + ((length - 1) * of->slots + row) * 2 * width, qkv + width, 2 * width * sizeof(float));
    for (Count time = 0; time < length; time++)
        places[time] = (time * of->slots + of->origin[row * of->room + time]) * 2 * width;
    for (Count head = 0; head < width; head += of->head) {
        for (Count time = 0; time < length; time++)
            scores[time] = of->scale * dot(qkv + head, of->store + places[time] + head, of->head);
        for (Count time = length; time < filled(length); time++) scores[time] = -INFINITY;
        softmax(scores, filled(length));
        mix(scores, of->store + width + head, 0, places, length, of->y + row * width + head, of->head);
    }
}

/* A row looks at a source, which it may share with others. */
typedef struct {
    const float *query;  /* rows heads head, a row `stride` after the other */
    const float *keys;   /* sentences heads head source */
    const float *values; /* sentences heads source head */
    const float *hidden; /* sentences source: added to what is seen */
    float *y;            /* rows heads head */
    Count stride, beams, heads, head, source; /* the rows of a sentence; `source` is a multiple of eight */
    float scale;
} Other;

FAST static void look(const Other *of, Count row) {
    Count width = of->heads * of->head, sentence = row / of->beams, place = sentence * width * of->source;
    float scores[of->source];
    for (Count head = 0; head < width; head += of->head, place += of->head * of->source) {
        mix(of->query + row * of->stride + head, of->keys + place, of->source, NULL, of->head, scores, of->source);
        for (Count i = 0; i < of->source; i += 8)
            store(scores + i, load(scores + i) * of->scale + load(of->hidden + sentence * of->source + i));
        softmax(scores, of->source);
        mix(scores, of->values + place, of->head, NULL, of->source, of->y + row * width + head, of->head);
    }
}

/* What is looked at: keys and values as they come (source, then `stride` apart; heads head each) and as `look` reads
   them, with zeros up to `room`. */
FAST static void lay(const float *from, Count stride, Count source, float *keys, float *values, Count heads, Count head,
                     Count room) {
    Count width = heads * head;
    for (Count i = 0; i < width; i++) {
        for (Count time = 0; time < source; time++) keys[i * room + time] = from[time * stride + i];
        for (Count time = source; time < room; time++) keys[i * room + time] = 0;
    }
    for (Count one = 0; one < heads; one++, values += room * head) {
        for (Count time = 0; time < source; time++)
            memcpy(values + time * head, from + time * stride + width + one * head, head * sizeof(float));
        memset(values + source * head, 0, (room - source) * head * sizeof(float));
    }
}

/* The functions between the two maps of a feed-forward network, but for ReLU, which a product does in passing. */
enum { RELU, GELU, GELU_TANH, SILU };

/* 1 / (1 + e^-x), by an exponent that is never positive. */
INLINE Eight sigmoid(Eight x) {
    Eight small = power((Eight)((Whole)x | INT32_MIN)), half = 1 / (1 + small); /* e^-|x| */
    Whole negative = x < 0;
    return (Eight)(((Whole)(small * half) & negative) | ((Whole)half & ~negative));
}

/* erf for x >= 0, within 2e-7 of it.      Abramowitz and Stegun 1964, 7.1.26 */
INLINE Eight error_function(Eight x) {
    Eight t = 1 / (1 + 0.3275911f * x);
    Eight sum = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    return 1 - sum * power(-x * x);
}

INLINE Eight function(int kind, Eight x) {
    if (kind == SILU) return x * sigmoid(x);
    if (kind == GELU_TANH) return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
    if (kind == GELU) {
        Eight size = (Eight)((Whole)x & INT32_MAX), half = 0.5f * error_function(size * 0.70710678f);
        return x * 0.5f + size * half;
    }
    return (Eight)((Whole)x & (x > 0));
}

/* In place. Gated: rows 2 width -> rows width, the function of the first half times the second. */
FAST static void activate(int kind, int gated, float *x, Count rows, Count width) {
    for (Count row = 0; row < rows; row++) {
        const float *from = x + row * width * (1 + gated);
        float *to = x + row * width;
        for (Count i = 0; i < width; i += 8) {
            Eight value = {0}, gate = {0};
            Count size = width - i < 8 ? width - i : 8;
            memcpy(&gate, from + i, size * sizeof(float));
            if (gated) memcpy(&value, from + width + i, size * sizeof(float));
            value = gated ? function(kind, gate) * value : function(kind, gate);
            memcpy(to + i, &value, size * sizeof(float));
        }
    }
}

/* What a layer holds. quick.py writes it as a row of 64-bit numbers, in this order. */
typedef struct {
    const void *weight; /* panels depth 16, or panels depth/2 16 2 in int8; the last panel is filled with zeros */
    const float *scales, *bias;
    Count depth, columns;
} Map;

typedef struct {
    Map query_key_value, output, inner, outer, cross_query, cross_output;
    Norm norms[3];
    float *store, *keys, *values; /* of the texts at hand */
} Layer;

/* How all layers of a stack work. */
typedef struct {
    Count layers, width, heads, cross_heads;
    int pre, rms, kind, gated, threads;
    float eps, scale, cross_scale;
} Style;

static int threads_for(Count operations, int threads) { return operations < LARGE ? 1 : threads; }

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

FAST static void norm_rows(const Norm *of, const Style *style, const float *x, float *y, Count rows) {
    int threads = threads_for(rows * style->width, style->threads);
    EACH_ROW norm(of, style->rms, style->eps, x + row * style->width, y + row * style->width, style->width);
}

/* Before a part of a layer, or after it: where the part reads from. */
FAST static const float *before(const Layer *layer, const Style *style, int part, float *x, float *normed, Count rows) {
    if (style->pre) {
        norm_rows(&layer->norms[part], style, x, normed, rows);
        return normed;
    }
    return x;
}

FAST static void after(const Layer *layer, const Style *style, int part, float *x, Count rows) {
    if (!style->pre) norm_rows(&layer->norms[part], style, x, x, rows);
}

FAST static void feed_forward(const Layer *layer, const Style *style, int part, float *x, float *normed, float *inner,
                              Count rows, float *rounded) {
    int relu = style->kind == RELU && !style->gated;
    apply(&layer->inner, before(layer, style, part, x, normed, rows), inner, rows, 0, relu, style->threads,
          rounded);
    if (!relu) activate(style->kind, style->gated, inner, rows, layer->outer.depth);
    apply(&layer->outer, inner, x, rows, 1, 0, style->threads, rounded);
    after(layer, style, part, x, rows);
}

/* Embedded sentences, all equally long, to their states. x: (sentences source) width; hidden: sentences room */
FAST static void encode(const Layer *layers, const Style *style, float *x, float *scratch, const float *hidden,
                        Count sentences, Count source) {
    Count width = style->width, rows = sentences * source, room = filled(source), head = width / style->heads;
    float *normed = scratch, *mixed = normed + rows * width, *threefold = mixed + rows * width;
    float *keys = threefold + 3 * rows * width, *values = keys + sentences * room * width;
    float *inner = values + sentences * room * width, *rounded = inner + rows * layers->inner.columns;
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(layer, style, 0, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        for (Count one = 0; one < sentences; one++)
            lay(threefold + one * source * 3 * width + width, 3 * width, source, keys + one * room * width,
                values + one * room * width, style->heads, head, room);
        Other all = {.query = threefold, .keys = keys, .values = values, .hidden = hidden, .y = mixed,
                     .stride = 3 * width, .beams = source, .heads = style->heads, .head = head, .source = room,
                     .scale = style->scale};
        int threads = threads_for(rows * room * width, style->threads);
        EACH_ROW look(&all, row);
        apply(&layer->output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(layer, style, 0, x, rows);
        feed_forward(layer, style, 1, x, normed, inner, rows, rounded);
    }
}

/* The newest, embedded token of each row to its state. x: rows width */
FAST static void step(const Layer *layers, const Style *style, float *x, float *scratch, const float *hidden,
                      int32_t *origin, Count rows, Count sentences, Count source, Count slots, Count room,
                      Count length) {
    Count width = style->width, head = width / style->heads, cross_head = width / style->cross_heads;
    float *normed = scratch, *mixed = normed + rows * width, *threefold = mixed + rows * width;
    float *inner = threefold + 3 * rows * width, *rounded = inner + rows * layers->inner.columns;
    for (Count row = 0; row < rows; row++) origin[row * room + length - 1] = (int32_t)row;
    for (const Layer *layer = layers; layer < layers + style->layers; layer++) {
        apply(&layer->query_key_value, before(layer, style, 0, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        Own own = {.qkv = threefold, .store = layer->store, .origin = origin, .y = mixed, .heads = style->heads,
                   .head = head, .slots = slots, .room = room, .length = length, .scale = style->scale};
        int threads = threads_for(rows * width * length, style->threads);
        EACH_ROW look_back(&own, row);
        apply(&layer->output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(layer, style, 0, x, rows);
        apply(&layer->cross_query, before(layer, style, 1, x, normed, rows), threefold, rows, 0, 0, style->threads,
              rounded);
        Other other = {.query = threefold, .keys = layer->keys, .values = layer->values, .hidden = hidden, .y = mixed,
                       .stride = width, .beams = rows / sentences, .heads = style->cross_heads, .head = cross_head,
                       .source = source, .scale = style->cross_scale};
        threads = threads_for(rows * width * source, style->threads);
        EACH_ROW look(&other, row);
        apply(&layer->cross_output, mixed, x, rows, 1, 0, style->threads, rounded);
        after(layer, style, 1, x, rows);
        feed_forward(layer, style, 2, x, normed, inner, rows, rounded);
    }
}

/* The vectors of tokens, from a table (or, in int8, from panels), times a factor, and what says where they stand:
   `period` places again and again. False if a token is not in the table. */
FAST static int embed(const int64_t *tokens, const void *table, const float *scales, float factor, const float *places,
                      Count period, float *x, Count rows, Count width, Count size) {
    for (Count row = 0; row < rows; row++, x += width) {
        Count token = tokens[row];
        const float *place = places + row % period * width, *vector = (const float *)table + token * width;
        if (token < 0 || token >= size) return 0;
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

/* From Python: addresses and sizes as integers. kernels.py is the only caller. */

static Count number(PyObject *given) { return PyLong_AsLongLong(given); }
static void *address(PyObject *given) { return (void *)(intptr_t)PyLong_AsLongLong(given); }
static float real(PyObject *given) { return (float)PyFloat_AsDouble(given); }

/* Whether a function was given what it takes; if not, with an error. */
static int taken(Py_ssize_t given, Py_ssize_t wanted) {
    if (given != wanted) PyErr_Format(PyExc_TypeError, "%zd arguments, but there are %zd", given, wanted);
    return given == wanted;
}

static Style style_of(PyObject *const *of) {
    return (Style){.layers = number(of[0]), .width = number(of[1]), .heads = number(of[2]), .cross_heads = number(of[3]),
                   .pre = (int)number(of[4]), .rms = (int)number(of[5]), .kind = (int)number(of[6]),
                   .gated = (int)number(of[7]), .eps = real(of[8]), .scale = real(of[9]), .cross_scale = real(of[10]),
                   .threads = (int)number(of[11])};
}

static PyObject *py_product(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 12)) return NULL;
    Map map = {.weight = address(of[0]), .scales = address(of[1]), .bias = address(of[2]), .depth = number(of[3]),
               .columns = number(of[4])};
    const float *x = address(of[5]);
    float *y = address(of[6]), *rounded = address(of[11]);
    Count rows = number(of[7]);
    int add = (int)number(of[8]), relu = (int)number(of[9]), threads = (int)number(of[10]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS apply(&map, x, y, rows, add, relu, threads, rounded);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_encode(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 18)) return NULL;
    Style style = style_of(of);
    const Layer *layers = address(of[12]);
    float *x = address(of[13]), *scratch = address(of[14]);
    const float *hidden = address(of[15]);
    Count sentences = number(of[16]), source = number(of[17]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS encode(layers, &style, x, scratch, hidden, sentences, source);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_step(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 23)) return NULL;
    Style style = style_of(of);
    const Layer *layers = address(of[12]);
    float *x = address(of[13]), *scratch = address(of[14]);
    const float *hidden = address(of[15]);
    int32_t *origin = address(of[16]);
    Count rows = number(of[17]), sentences = number(of[18]), source = number(of[19]), slots = number(of[20]);
    Count room = number(of[21]), length = number(of[22]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS step(layers, &style, x, scratch, hidden, origin, rows, sentences, source, slots, room, length);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_lay(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 9)) return NULL;
    const float *from = address(of[0]);
    float *keys = address(of[1]), *values = address(of[2]);
    Count stride = number(of[3]), sentences = number(of[4]), source = number(of[5]), heads = number(of[6]);
    Count head = number(of[7]), room = number(of[8]), size = heads * head * room;
    if (PyErr_Occurred()) return NULL;
    for (Count one = 0; one < sentences; one++)
        lay(from + one * source * stride, stride, source, keys + one * size, values + one * size, heads, head, room);
    Py_RETURN_NONE;
}

static PyObject *py_embed(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 10)) return NULL;
    const int64_t *tokens = address(of[0]);
    const void *table = address(of[1]);
    const float *scales = address(of[2]), *places = address(of[4]);
    float factor = real(of[3]), *x = address(of[6]);
    Count period = number(of[5]), rows = number(of[7]), width = number(of[8]), size = number(of[9]);
    if (PyErr_Occurred()) return NULL;
    if (!embed(tokens, table, scales, factor, places, period, x, rows, width, size))
        return PyErr_Format(PyExc_IndexError, "a token is not one of the %lld of the table", size);
    Py_RETURN_NONE;
}

static PyObject *py_norm(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 8)) return NULL;
    Norm norm = {.weight = address(of[0]), .bias = address(of[1])};
    Style style = {.rms = (int)number(of[2]), .eps = real(of[3]), .width = number(of[6]), .threads = (int)number(of[7])};
    float *x = address(of[4]);
    Count rows = number(of[5]);
    if (PyErr_Occurred()) return NULL;
    norm_rows(&norm, &style, x, x, rows);
    Py_RETURN_NONE;
}

static PyObject *py_log_softmax(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 4)) return NULL;
    float *x = address(of[0]);
    Count rows = number(of[1]), size = number(of[2]);
    int threads = threads_for(rows * size, (int)number(of[3]));
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS EACH_ROW log_softmax(x + row * size, size);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_largest(PyObject *self, PyObject *const *of, Py_ssize_t given) {
    if (!taken(given, 9)) return NULL;
    const float *x = address(of[0]), *offsets = address(of[1]);
    Count rows = number(of[2]), beams = number(of[3]), size = number(of[4]), count = number(of[5]);
    float *values = address(of[6]);
    int64_t *places = address(of[7]);
    int threads = threads_for(rows * beams * size, (int)number(of[8]));
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS EACH_ROW largest(x + row * beams * size, offsets ? offsets + row * beams : NULL, beams, size,
                                            count, values + row * count, places + row * count);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(product), FUNCTION(encode), FUNCTION(step),        FUNCTION(lay),         FUNCTION(embed),
    FUNCTION(norm),    FUNCTION(log_softmax), FUNCTION(largest), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
#endif
    return PyModule_Create(&module);
}
