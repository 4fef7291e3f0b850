/* What training needs, forwards and backwards: attention, the functions of feed-forward networks, dropout, the loss. */
#pragma once

#include "rows.h"

/* ---- Small products ---- */

/* Sixteen columns of y = x w, or y + x w, where x is read as x[row * across + k * along] and w[k * step + column]; or more
   of them, `panel` numbers further. */
INLINE void strip(int rows, int wide, const float *x, Count across, Count along, const float *w, Count panel, Count step,
                  Count depth, float *y, Count stride, int add) {
    Line sums[TILE][ACROSS * PARTS];
    begin(rows, wide * PARTS, sums, y, stride, NULL, add);
    add_floats(rows, wide, sums, x, across, along, w, panel, step, depth);
    end(rows, wide * PARTS, sums, y, stride, 0);
}

/* The same for all columns, a multiple of sixteen. */
FAST static void multiply(const float *x, Count across, Count along, const float *w, Count step, Count depth, float *y,
                          Count stride, Count rows, Count columns, int add) {
    for (Count column = 0; column < columns; column += PANEL, w += PANEL, y += PANEL) {
        Count row = 0;
        for (; row + TILE <= rows; row += TILE)
            strip(TILE, 1, x + row * across, across, along, w, 0, step, depth, y + row * stride, stride, add);
        const float *from = x + row * across;
        float *to = y + row * stride;
        switch (rows - row) {
#define CASE(count) case count: strip(count, 1, from, across, along, w, 0, step, depth, to, stride, add); break;
            CASES
#undef CASE
        }
    }
}

/* ---- What is dropped ---- */

/* Each of sixteen numbers that are dropped by chance: all bits set where it is kept. `at`, a multiple of sixteen, is the
   place of the first. What is drawn depends on the two seeds and a number's place only, so that the way back draws it
   again. Sixteen bits tell what is dropped: those below `dropped`. */
INLINE void draw(Count at, uint32_t dropped, uint32_t seed, uint32_t second, Whole kept[2]) {
    typedef uint32_t Bits __attribute__((vector_size(32)));
    const Bits lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    Bits bits = (lanes + (uint32_t)(at / 2)) ^ seed; /* mixed like a hash: each bit turns half of the others */
    bits = (bits ^ bits >> 16) * 0x7feb352du ^ second;
    bits = (bits ^ bits >> 15) * 0x846ca68bu;
    bits ^= bits >> 16;
    kept[0] = (Whole)(bits & 0xffff) >= (int32_t)dropped;
    kept[1] = (Whole)(bits >> 16) >= (int32_t)dropped;
}

/* ---- Attention ---- */

#define BLOCK 96  /* queries at a time, at most */
#define CAUSAL 36 /* the same where each sees only those before it */

typedef struct {
    float *at;
    Count batch, head, time; /* how far apart */
} View;

/* y = dropout(softmax(scale q k' + additive)) v, a head of a sentence after the other; `shared` heads of the queries
   after each other have the same keys and values.

   `sums` holds log(sum(exp)) of each query's scores: with it the way back makes the weights once more rather than keep
   them.      Dao et al. 2022 */
typedef struct {
    View query, key, value, y;
    View d_y, d_query, d_key, d_value; /* on the way back */
    const float *additive;               /* added to what is seen, or NULL */
    Count additive_batch, additive_query;
    float *sums; /* batch heads queries, or NULL */
    Count batch, heads, queries, keys, head;
    Count shared; /* 0 as 1 */
    float scale;
    int causal; /* then there are as many queries as keys */
    uint32_t dropped, seed, second; /* of the weights, see `draw`; none if `dropped` is 0 */
    float factor;                   /* of those that are kept */
} Attention;

static Count shared_by(const Attention *of) { return of->shared ? of->shared : 1; }

static Count filled_up(Count length) { return (length + PANEL - 1) / PANEL * PANEL; }

/* From a row of scores to the next: a power of two would put all of them into one place of the cache. */
static Count room_for(Count keys) { return filled_up(keys) + PANEL; }

static float *place(const View *view, Count batch, Count head) {
    return view->at + batch * view->batch + head * view->head;
}

/* Eight rows of eight numbers to eight columns. */
INLINE void turn_eight(const float *from, Count stride, float *to, Count room) {
#if defined(__x86_64__)
    __m256 rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; i++) rows[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            fours[i + 2 * half] = _mm256_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0x44);
            fours[i + 2 * half + 1] = _mm256_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * room, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * room, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
#else
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++) to[k * room + i] = from[i * stride + k];
#endif
}

/* count width -> width room, with zeros up to a multiple of sixteen; width is a multiple of eight. */
FAST static void turn(const float *from, Count stride, Count count, Count width, float *to, Count room) {
    for (Count time = 0; time < filled_up(count); time += 8)
        for (Count i = 0; i < width; i += 8) {
            const float *some = from + time * stride + i;
            if (time + 8 <= count)
                turn_eight(some, stride, to + i * room + time, room);
            else {
                float last[64] = {0};
                for (Count row = 0; row < count - time; row++) store(last + 8 * row, load(some + row * stride));
                turn_eight(last, 8, to + i * room + time, room);
            }
        }
}

/* The place of a query's first weight among all, for `draw`. */
static Count place_of_weights(const Attention *of, Count batch, Count head, Count query) {
    return ((batch * of->heads + head) * of->queries + query) * filled_up(of->keys);
}

/* In place: what is dropped of a query's weights becomes zero; `size` is a multiple of sixteen. */
INLINE void drop_weights(const Attention *of, Count place, float *weights, Count size) {
    for (Count i = 0; i < size; i += 16) {
        Whole kept[2];
        draw(place + i, of->dropped, of->seed, of->second, kept);
        for (int half = 0; half < 2; half++) {
            float *at = weights + i + 8 * half;
            store(at, (Eight)((Whole)load(at) & kept[half]));
        }
    }
}

/* How many queries at a time: all blocks about equally long. */
static Count block_of(const Attention *of) {
    Count most = of->causal ? CAUSAL : BLOCK, blocks = (of->queries + most - 1) / most;
    return ((of->queries + blocks - 1) / blocks + TILE - 1) / TILE * TILE;
}

/* How many keys, filled up, the queries before `until` look at. */
static Count seen_by(const Attention *of, Count until) {
    return filled_up(of->causal && until < of->keys ? until : of->keys);
}

/* What a row of products becomes before the exponent: scaled, and hidden where it is not seen. */
typedef struct {
    const float *additive; /* or NULL */
    Count end;           /* the first that is not seen */
    float scale;
} Visible;

static Visible visible_to(const Attention *of, Count batch, Count query) {
    Count end = of->causal && query + 1 < of->keys ? query + 1 : of->keys;
    const float *additive = of->additive ? of->additive + batch * of->additive_batch + query * of->additive_query : NULL;
    return (Visible){additive, end, of->scale};
}

INLINE Eight seen_at(const Visible *visible, const float *x, Count i) {
    Eight value = load(x + i) * visible->scale;
    if (i + 8 <= visible->end) return visible->additive ? value + load(visible->additive + i) : value;
    if (visible->additive && i < visible->end) value += some_of(visible->additive + i, visible->end - i);
    {
        Whole there = (Whole){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)i < (int32_t)visible->end;
        value = (Eight)(((Whole)value & there) | ((Whole)((Eight){0} - INFINITY) & ~there));
    }
    return value;
}

/* In place: exponents, from the largest on; `sum` of them. Gives the logarithm of what the exponents of the scores
   themselves would add up to. */
INLINE float exponents(const Visible *visible, float *x, Count size, float *sum) {
    Eight most = (Eight){0} - INFINITY, all = {0};
    for (Count i = 0; i < size; i += 8) most = larger(seen_at(visible, x, i), most);
    float largest = largest_of((const float *)&most, 8);
    for (Count i = 0; i < size; i += 8) {
        Eight value = exponential(seen_at(visible, x, i) - largest);
        store(x + i, value);
        all += value;
    }
    *sum = sum_of(all);
    return largest + logf(*sum);
}

/* Room for what follows, in numbers. */
static Count attention_room(Count keys, Count head) { return room_for(keys) * 2 * (head + BLOCK); }

/* A head of the queries; `keys`: those it shares, turned. */
FAST static void attend_head(const Attention *of, Count batch, Count head, const float *value, const float *keys,
                             float *scores) {
    Count room = room_for(of->keys), block = block_of(of);
    const float *query = place(&of->query, batch, head);
    float *y = place(&of->y, batch, head), sums[BLOCK];
    for (Count first = 0; first < of->queries; first += block) {
        Count rows = of->queries - first < block ? of->queries - first : block, seen = seen_by(of, first + rows);
        multiply(query + first * of->query.time, of->query.time, 1, keys, room, of->head, scores, room, rows, seen, 0);
        for (Count row = 0; row < rows; row++) {
            Visible visible = visible_to(of, batch, first + row);
            float log_sum = exponents(&visible, scores + row * room, seen, &sums[row]);
            if (of->sums) of->sums[(batch * of->heads + head) * of->queries + first + row] = log_sum;
            if (of->dropped)
                drop_weights(of, place_of_weights(of, batch, head, first + row), scores + row * room, seen);
        }
        if (seen > of->keys) seen = of->keys;
        multiply(scores, room, 1, value, of->value.time, seen, y + first * of->y.time, of->y.time, rows, of->head, 0);
        for (Count row = 0; row < rows; row++) {
            float *made = y + (first + row) * of->y.time;
            float factor = sums[row] > 0 ? 1 / sums[row] : 0; /* where there is nothing to see, nothing is seen */
            if (of->dropped) factor *= of->factor;
            for (Count i = 0; i < of->head; i += 8) store(made + i, load(made + i) * factor);
        }
    }
}

FAST static void attend(const Attention *of, Count batch, Count kv_head, float *scratch) {
    Count room = room_for(of->keys), group = shared_by(of);
    turn(place(&of->key, batch, kv_head), of->key.time, of->keys, of->head, scratch, room);
    for (Count head = kv_head * group; head < (kv_head + 1) * group; head++)
        attend_head(of, batch, head, place(&of->value, batch, kv_head), scratch, scratch + of->head * room);
}

/* With P the weights:  dV = P' dY,  dS = P * (dY V' - rowsum(dY * Y)) * scale,  dQ = dS K,  dK = dS' Q
   With dropout, and M = 0 or `factor`:  dV = (P * M)' dY,  dS = P * (M * dY V' - rowsum(dY * Y)) * scale */
FAST static void attend_head_back(const Attention *of, Count batch, Count kv_head, Count head, float *scratch) {
    Count room = room_for(of->keys), width = of->head, block = block_of(of);
    float *keys = scratch, *values = keys + width * room, *weights = values + width * room, *slopes = weights + BLOCK * room;
    const float *query = place(&of->query, batch, head), *key = place(&of->key, batch, kv_head);
    const float *y = place(&of->y, batch, head), *d_y = place(&of->d_y, batch, head);
    float *d_query = place(&of->d_query, batch, head), *d_key = place(&of->d_key, batch, kv_head);
    float *d_value = place(&of->d_value, batch, kv_head);
    int begins = head % shared_by(of) == 0; /* the first of those that share */
    for (Count first = 0; first < of->queries; first += block) {
        Count rows = of->queries - first < block ? of->queries - first : block, seen = seen_by(of, first + rows);
        multiply(query + first * of->query.time, of->query.time, 1, keys, room, width, weights, room, rows, seen, 0);
        multiply(d_y + first * of->d_y.time, of->d_y.time, 1, values, room, width, slopes, room, rows, seen, 0);
        for (Count row = 0; row < rows; row++) {
            const float *d = d_y + (first + row) * of->d_y.time, *made = y + (first + row) * of->y.time;
            float sum = of->sums[(batch * of->heads + head) * of->queries + first + row], *slope = slopes + row * room;
            float *weight = weights + row * room;
            Eight both = {0};
            for (Count i = 0; i < width; i += 8) both += load(d + i) * load(made + i);
            float mean = sum_of(both);
            Visible visible = visible_to(of, batch, first + row);
            Count place = place_of_weights(of, batch, head, first + row);
            Whole drawn[2] = {{0}};
            for (Count i = 0; i < seen; i += 8) {
                Eight p = exponential(seen_at(&visible, weight, i) - sum), d = load(slope + i), kept = p;
                if (of->dropped) {
                    if (i % 16 == 0) draw(place + i, of->dropped, of->seed, of->second, drawn);
                    kept = (Eight)((Whole)(p * of->factor) & drawn[i / 8 % 2]);
                    d = (Eight)((Whole)(d * of->factor) & drawn[i / 8 % 2]);
                }
                store(weight + i, kept);
                store(slope + i, p * (d - mean) * of->scale);
            }
        }
        if (seen > of->keys) seen = of->keys;
        multiply(slopes, room, 1, key, of->key.time, seen, d_query + first * of->d_query.time, of->d_query.time, rows, width,
                 0);
        /* A causal block is the first to be seen by its own keys: they begin here, those before go on. */
        Count old = begins ? of->causal ? first : first ? of->keys : 0 : seen;
        const float *from[] = {d_y + first * of->d_y.time, query + first * of->query.time}, *by[] = {weights, slopes};
        Count step[] = {of->d_y.time, of->query.time}, stride[] = {of->d_value.time, of->d_key.time};
        float *to[] = {d_value, d_key};
        for (int one = 0; one < 2; one++) {
            multiply(by[one], 1, room, from[one], step[one], rows, to[one], stride[one], old < seen ? old : seen, width, 1);
            if (old < seen)
                multiply(by[one] + old, 1, room, from[one], step[one], rows, to[one] + old * stride[one], stride[one],
                         seen - old, width, 0);
        }
    }
}

FAST static void attend_back(const Attention *of, Count batch, Count kv_head, float *scratch) {
    Count room = room_for(of->keys), group = shared_by(of);
    turn(place(&of->key, batch, kv_head), of->key.time, of->keys, of->head, scratch, room);
    turn(place(&of->value, batch, kv_head), of->value.time, of->keys, of->head, scratch + of->head * room, room);
    for (Count head = kv_head * group; head < (kv_head + 1) * group; head++)
        attend_head_back(of, batch, kv_head, head, scratch);
}

FAST static void attend_all(const Attention *of, float *scratch, int back, int threads) {
    Count kv_heads = of->heads / shared_by(of), items = of->batch * kv_heads, room = attention_room(of->keys, of->head);
    threads = threads_for(of->batch * of->heads * of->queries * of->keys * of->head, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++)
        for (Count item = items * part / threads; item < items * (part + 1) / threads; item++)
            (back ? attend_back : attend)(of, item / kv_heads, item % kv_heads, scratch + part * room);
}

/* ---- Rotary positions ---- */

/* y_a = x_a cos_a - x_b sin_a,  y_b = x_b cos_b + x_a sin_b  for the halves a and b of each head; or the way back. */
typedef struct {
    View x, y;
    const float *cos, *sin; /* batch (`apart`, or 0 where all are alike) time head */
    Count apart, batch, heads, time, head;
    int back;
} Rotation;

FAST static void rotate(const Rotation *of, Count batch, Count time) {
    const float *cos = of->cos + batch * of->apart + time * of->head, *sin = of->sin + batch * of->apart + time * of->head;
    Count half = of->head / 2;
    for (Count one = 0; one < of->heads; one++) {
        const float *x = place(&of->x, batch, one) + time * of->x.time;
        float *y = place(&of->y, batch, one) + time * of->y.time;
        for (Count i = 0; i < half; i += 8) {
            Eight a = load(x + i), b = load(x + half + i), first = load(sin + i), second = load(sin + half + i);
            if (of->back) {
                Eight swapped = first;
                first = -second, second = -swapped;
            }
            store(y + i, a * load(cos + i) - b * first);
            store(y + half + i, b * load(cos + half + i) + a * second);
        }
    }
}

FAST static void rotate_all(const Rotation *of, int threads) {
    Count rows = of->batch * of->time;
    threads = threads_for(rows * of->heads * of->head * 16, threads);
    EACH_ROW(rotate(of, row / of->time, row % of->time));
}

/* ---- Functions and dropout ---- */

INLINE void activate_by(int kind, const float *x, const float *d_y, float *y, Count from, Count end) {
    Count i = from;
    Line slope;
    if (d_y)
        for (; i + LANES <= end; i += LANES) {
            line_function_and_slope(kind, load_line(x + i), &slope);
            store_line(y + i, slope * load_line(d_y + i));
        }
    else
        for (; i + LANES <= end; i += LANES) store_line(y + i, line_function(kind, load_line(x + i)));
    for (; i < end; i += 8) {
        Eight some, value = function_and_slope(kind, some_of(x + i, end - i), &some);
        put(y + i, d_y ? some * some_of(d_y + i, end - i) : value, end - i);
    }
}

/* y = f(x), or with `d_y` its gradient. */
FAST static void activate_part(int kind, const float *x, const float *d_y, float *y, Count from, Count end) {
    switch (kind) {
    case RELU: activate_by(RELU, x, d_y, y, from, end); break;
    case GELU: activate_by(GELU, x, d_y, y, from, end); break;
    case GELU_TANH: activate_by(GELU_TANH, x, d_y, y, from, end); break;
    case SILU: activate_by(SILU, x, d_y, y, from, end); break;
    }
}

/* y = x + v times 0 or `factor`, by chance, see `draw`. `x` may be NULL. */
INLINE void drop_part(const float *x, const float *v, float *y, Count from, Count end, uint32_t dropped, float factor,
                      uint32_t seed, uint32_t second) {
    for (Count i = from; i < end; i += 16) { /* `from` is a multiple of sixteen */
        Whole kept[2];
        draw(i, dropped, seed, second, kept);
        for (int half = 0; half < 2 && i + 8 * half < end; half++) {
            Count at = i + 8 * half;
            Eight value = (Eight)((Whole)(some_of(v + at, end - at) * factor) & kept[half]);
            if (x) value += some_of(x + at, end - at);
            put(y + at, value, end - at);
        }
    }
}

/* `call` for parts of `size` numbers, `from` to `end`, on as many threads as are worth it. */
#define EACH_PART(call)                                                                       \
    do {                                                                                      \
        threads = threads_for(size * 16, threads);                                            \
        _Pragma("omp parallel for num_threads(threads) schedule(static)")                     \
        for (int part = 0; part < threads; part++) {                                          \
            Count from = size * part / threads / 16 * 16;                                     \
            Count end = part + 1 == threads ? size : size * (part + 1) / threads / 16 * 16;   \
            call;                                                                             \
        }                                                                                     \
    } while (0)

FAST static void activate_all(int kind, const float *x, const float *d_y, float *y, Count size, int threads) {
    EACH_PART(activate_part(kind, x, d_y, y, from, end));
}

FAST static void drop_all(const float *x, const float *v, float *y, Count size, uint32_t dropped, float factor,
                          uint32_t seed, uint32_t second, int threads) {
    EACH_PART(drop_part(x, v, y, from, end, dropped, factor, seed, second));
}

/* ---- The loss ---- */

/* With p = softmax(x), target t and share s:  log(sum(exp(x))) - s x_t;  in place, its gradient p - s onehot(t). */
FAST static double cross_entropy(float *x, Count size, Count target, float share) {
    double target_score = share * (double)x[target];
    float most = largest_of(x, size);
    Line sums = {0};
    Count i = 0;
    for (; i + LANES <= size; i += LANES) {
        Line value = line_exponential(load_line(x + i) - most);
        store_line(x + i, value);
        sums += value;
    }
    Eight sum = {0};
    for (; i < size; i += 8) {
        Eight value = some_of(x + i, size - i) - most;
        if (size - i < 8)
            for (Count lane = size - i; lane < 8; lane++) value[lane] = -INFINITY;
        value = exponential(value);
        put(x + i, value, size - i);
        sum += value;
    }
    float total = sum_of(sum) + sum_of_lines(&sums, 1), factor = 1 / total;
#pragma omp simd
    for (Count i = 0; i < size; i++) x[i] *= factor;
    x[target] -= share;
    return most + log(total) - target_score;
}
