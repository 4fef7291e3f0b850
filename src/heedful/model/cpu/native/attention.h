/* Attention: a row looks at its own text, or at a source. */
#pragma once

#include "rows.h"

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

/* (a, b) -> (a cos - b sin, b cos + a sin), where a is the first half of a head and b the second. `turns`: the cosines,
   then the sines. */
INLINE void rotate_head(float *x, const float *turns, Count head) {
    Count half = head / 2;
    float *other = x + half;
    const float *sines = turns + half;
#pragma omp simd
    for (Count i = 0; i < half; i++) {
        float a = x[i], b = other[i];
        x[i] = a * turns[i] - b * sines[i];
        other[i] = b * turns[i] + a * sines[i];
    }
}

/* A row looks at what it has written: its newest key and value are put away, then all are looked at. */
typedef struct {
    float *qkv;            /* rows (heads + 2 kv_heads) head: queries, keys, values */
    float *store;          /* room slots 2 kv_heads head */
    const int32_t *origin; /* rows room: in which slot a row's token of each time stands; a beam moves nothing else */
    const int32_t *starts; /* of each row: when its text begins; NULL: at once */
    const float *turns;    /* rows head: what queries and keys are rotated by; or NULL */
    const float *biases;   /* heads far: added to the scores, by distance, the newest last; or NULL */
    float *y;              /* rows heads head */
    Count heads, kv_heads, head, slots, room, length, window, far;
    float scale;
} Own;

/* The heads of a row that share a key and a value: `item` counts them. */
FAST static void look_back(const Own *of, Count item) {
    Count row = item / of->kv_heads, group = item % of->kv_heads, head = of->head, shared = of->heads / of->kv_heads;
    Count newest = of->length - 1, width = of->kv_heads * head, first = of->starts ? of->starts[row] : 0;
    if (of->window && of->length - of->window > first) first = of->length - of->window;
    Count count = of->length - first, places[count];
    float *queries = of->qkv + row * (of->heads + 2 * of->kv_heads) * head, *key = queries + (of->heads + group) * head;
    float *store = of->store + group * head, *put = store + (newest * of->slots + row) * 2 * width, scores[filled(count)];
    queries += group * shared * head;
    for (Count one = 0; of->turns && one < shared; one++) rotate_head(queries + one * head, of->turns + row * head, head);
    if (of->turns) rotate_head(key, of->turns + row * head, head);
    memcpy(put, key, head * sizeof(float));
    memcpy(put + width, key + width, head * sizeof(float));
    for (Count i = 0; i < count; i++)
        places[i] = ((first + i) * of->slots + of->origin[row * of->room + first + i]) * 2 * width;
    for (Count one = 0; one < shared; one++) {
        Count number = group * shared + one;
        for (Count i = 0; i < count; i++) scores[i] = of->scale * dot(queries + one * head, store + places[i], head);
        if (of->biases) {
            const float *biases = of->biases + number * of->far + of->far - count;
            for (Count i = 0; i < count; i++) scores[i] += biases[i];
        }
        for (Count i = count; i < filled(count); i++) scores[i] = -INFINITY;
        softmax(scores, filled(count));
        mix(scores, store + width, 0, places, count, of->y + (row * of->heads + number) * head, head);
    }
}

/* A row looks at a source, which it may share with others. */
typedef struct {
    const float *query;  /* rows heads head, a row `stride` after the other */
    const float *keys;   /* sentences heads head source */
    const float *values; /* sentences heads source head */
    const float *additive; /* sentences source: added to what is seen */
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
            store(scores + i, load(scores + i) * of->scale + load(of->additive + sentence * of->source + i));
        softmax(scores, of->source);
        mix(scores, of->values + place, of->head, NULL, of->source, of->y + row * width + head, of->head);
    }
}

/* What is looked at: keys and values as they come (source, then `stride` apart; heads head each) and as `look` reads
   them, with zeros up to `room`. */
FAST static void lay_out(const float *from, Count stride, Count source, float *keys, float *values, Count heads, Count head,
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
