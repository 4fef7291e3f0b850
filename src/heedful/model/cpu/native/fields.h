/* The structs that Python fills in, field by field. This is the only list of them: C takes its structs from it, and
   native.c exports names, types and offsets, by which layers.py packs what it hands over. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef long long Count;

/* W and b of a linear map. */
#define MAP_FIELDS(FIELD)                                                                                      \
    FIELD(const void *, weight) /* panels depth 16, or panels depth/2 16 2 in int8; the last filled with zeros */ \
    FIELD(const float *, scales) /* of int8 weights, one for each output; else NULL */                         \
    FIELD(const float *, bias)   /* filled with zeros like the weights, or NULL */                             \
    FIELD(Count, depth)                                                                                        \
    FIELD(Count, columns)

#define NORM_FIELDS(FIELD)       \
    FIELD(const float *, weight) \
    FIELD(const float *, bias) /* or NULL */

/* What a layer holds; nothing for `cross` where there is no source. */
#define LAYER_FIELDS(FIELD)                                                    \
    FIELD(Map, query_key_value)                                                \
    FIELD(Map, output)                                                         \
    FIELD(Map, cross_query)                                                    \
    FIELD(Map, cross_output)                                                   \
    FIELD(Map, inner)                                                          \
    FIELD(Map, outer)                                                          \
    FIELD(Norm, attention_norm)                                                \
    FIELD(Norm, cross_norm)                                                    \
    FIELD(Norm, feedforward_norm)                                              \
    FIELD(Count, window)          /* how many tokens a row looks back at, itself included; 0 = all */ \
    FIELD(float *, store)         /* of the texts being written: keys and values, room slots 2 kv_heads head */ \
    FIELD(const float *, keys)    /* of their sources, as attention.h has them */ \
    FIELD(const float *, values)

/* How all layers of a stack work. */
#define STYLE_FIELDS(FIELD)                                             \
    FIELD(Count, layers)                                                \
    FIELD(Count, width)                                                 \
    FIELD(Count, heads)                                                 \
    FIELD(Count, kv_heads) /* each shared by heads / kv_heads */        \
    FIELD(Count, head)     /* the width of one */                       \
    FIELD(Count, cross_heads)                                           \
    FIELD(Count, cross_head)                                            \
    FIELD(int, pre)  /* norms stand before the parts of a layer */      \
    FIELD(int, rms)  /* and are RMSNorm */                              \
    FIELD(int, kind) /* the function of the feed-forward, of rows.h */  \
    FIELD(int, gated)                                                   \
    FIELD(int, threads) /* set at each call */                          \
    FIELD(float, eps)                                                   \
    FIELD(float, scale)                                                 \
    FIELD(float, cross_scale)

#define MEMBER(type, name) type name;
typedef struct { MAP_FIELDS(MEMBER) } Map;
typedef struct { NORM_FIELDS(MEMBER) } Norm;
typedef struct { LAYER_FIELDS(MEMBER) } Layer;
typedef struct { STYLE_FIELDS(MEMBER) } Style;
#undef MEMBER

/* The type of a field, as Python's array interface spells it; of a struct, its name. */
#define CODE(type)                                                                                                      \
    _Generic((type){0}, Count: "i8", int: "i4", float: "f4", Map: "Map", Norm: "Norm", const void *: "i8",             \
             const float *: "i8", float *: "i8")

typedef struct {
    const char *name, *code;
    size_t offset;
} Field;

typedef struct {
    const char *name;
    size_t size;
    const Field *fields;
} Struct;

#define ROW(type, name) {#name, CODE(type), offsetof(STRUCT, name)},
#define STRUCT Map
static const Field map_fields[] = {MAP_FIELDS(ROW){NULL, NULL, 0}};
#undef STRUCT
#define STRUCT Norm
static const Field norm_fields[] = {NORM_FIELDS(ROW){NULL, NULL, 0}};
#undef STRUCT
#define STRUCT Layer
static const Field layer_fields[] = {LAYER_FIELDS(ROW){NULL, NULL, 0}};
#undef STRUCT
#define STRUCT Style
static const Field style_fields[] = {STYLE_FIELDS(ROW){NULL, NULL, 0}};
#undef STRUCT
#undef ROW

static const Struct structs[] = { /* a struct stands after those it is made of */
    {"Map", sizeof(Map), map_fields},
    {"Norm", sizeof(Norm), norm_fields},
    {"Layer", sizeof(Layer), layer_fields},
    {"Style", sizeof(Style), style_fields},
    {NULL, 0, NULL},
};
