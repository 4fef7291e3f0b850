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
