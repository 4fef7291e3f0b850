/* An encoder, and a step of a decoder, on a CPU: for decoding.py; and what training does most, for training.py.
   kernels.py, layers.py, training.py and loss.py are the only callers. They hand over addresses and sizes, and the structs
   of fields.h. They check what an address stands for (type, device, shape, contiguity); the functions here check sizes,
   indices, and that nothing is missing.

   A step of a small model is over in less time than torch takes to start its parts one by one, and products of few rows
   are where matrix libraries are at their weakest.

   fields.h      the structs that Python fills in
   vectors.h     eight or sixteen numbers         attention.h   who looks at what
   product.h     weights times rows               layers.h      all of it, layer by layer
   rows.h        what is done to each row         training.h, linear.h, residual.h   forwards and backwards
   checks.h      what Python hands over */

#include "checks.h" /* first, as it includes Python.h */

#include "layers.h"
#include "linear.h"
#include "residual.h"

/* A stack's style, with the threads of this call. */
static int read_style(PyObject *at, PyObject *threads, Style *style) {
    const Style *from = address(at);
    Count count = number(threads);
    if (!is_there("style", from) || !between("threads", 1, count, THREADS)) return 0;
    *style = *from, style->threads = (int)count;
    return 1;
}

static PyObject *py_product(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 12)) return NULL;
    Map map = {.weight = address(of[0]), .scales = address(of[1]), .bias = address(of[2]), .depth = number(of[3]),
               .columns = number(of[4])};
    const float *x = address(of[5]);
    float *y = address(of[6]), *rounded = address(of[11]);
    Count rows = number(of[7]);
    Count add = number(of[8]), relu = number(of[9]), threads = number(of[10]);
    if (!is_size("rows", rows) || !between("depth", 1, map.depth, MOST) || !between("columns", 1, map.columns, MOST) ||
        !between("threads", 1, threads, THREADS) || !is_there("weight", map.weight))
        return NULL;
    if (rows && (!is_there("x", x) || !is_there("y", y) || (map.scales && !is_there("rounded", rounded)))) return NULL;
    Py_BEGIN_ALLOW_THREADS apply(&map, x, y, rows, add != 0, relu != 0, (int)threads, rounded);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* Whether sentences follow each other, none longer than the longest. */
static int are_starts(const Count *starts, Count sentences, Count longest) {
    if (!between("the first start", 0, starts[0], 0)) return 0;
    for (Count one = 0; one < sentences; one++)
        if (!between("the end of a sentence", starts[one], starts[one + 1], starts[one] + longest)) return 0;
    return 1;
}

static PyObject *py_encode(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 9)) return NULL;
    Style style;
    if (!read_style(of[0], of[1], &style)) return NULL;
    const Layer *layers = address(of[2]);
    float *x = address(of[3]), *scratch = address(of[4]);
    const float *additive = address(of[5]);
    const Count *starts = address(of[6]);
    Count sentences = number(of[7]), source = number(of[8]);
    if (!between("sentences", 1, sentences, MOST) || !between("source", 1, source, LONGEST) || !is_there("layers", layers) ||
        !is_there("x", x) || !is_there("scratch", scratch) || (!starts && !is_there("additive", additive)))
        return NULL;
    if (starts && !are_starts(starts, sentences, source)) return NULL;
    Py_BEGIN_ALLOW_THREADS encode(layers, &style, x, scratch, additive, starts, sentences, source);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* Whether the slots of all tokens but the newest are there. */
static int are_slots(const int32_t *origin, Count rows, Count room, Count length, Count slots) {
    for (Count row = 0; row < rows; row++) {
        uint32_t most = 0; /* a negative one is larger than all */
        for (Count time = 0; time < length - 1; time++) {
            uint32_t slot = (uint32_t)origin[row * room + time];
            most = slot > most ? slot : most;
        }
        if (most >= slots) {
            PyErr_Format(PyExc_IndexError, "a token of row %lld is in slot %d, but there are %lld", row, (int)most, slots);
            return 0;
        }
    }
    return 1;
}

/* Whether each row begins before its newest token. */
static int have_begun(const int32_t *starts, Count rows, Count length) {
    for (Count row = 0; row < rows; row++)
        if (!between("the start of a row", 0, starts[row], length - 1)) return 0;
    return 1;
}

static PyObject *py_step(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 17)) return NULL;
    Style style;
    if (!read_style(of[0], of[1], &style)) return NULL;
    const Layer *layers = address(of[2]);
    float *x = address(of[3]), *scratch = address(of[4]);
    Writing job = {.additive = address(of[5]), .origin = address(of[6]), .starts = address(of[7]),
                   .turns = address(of[8]), .biases = address(of[9]), .rows = number(of[10]),
                   .sentences = number(of[11]), .source = number(of[12]), .slots = number(of[13]),
                   .room = number(of[14]), .length = number(of[15]), .far = number(of[16])};
    if (!between("slots", 1, job.slots, INT32_MAX) || !between("rows", 1, job.rows, job.slots) ||
        !between("sentences", 1, job.sentences, job.rows) || !split_by("rows", job.rows, job.sentences) ||
        !between("source", 0, job.source, LONGEST) ||
        !between("length", 1, job.length, job.room < LONGEST ? job.room : LONGEST) || !is_there("layers", layers) ||
        !is_there("x", x) || !is_there("scratch", scratch) || !is_there("origin", job.origin) ||
        (job.source && (!split_by("source", job.source, 8) || !is_there("additive", job.additive))) ||
        (job.biases && !between("far", job.length, job.far, MOST)) ||
        (job.starts && !have_begun(job.starts, job.rows, job.length)) ||
        !are_slots(job.origin, job.rows, job.room, job.length, job.slots))
        return NULL;
    Py_BEGIN_ALLOW_THREADS step(layers, &style, &job, x, scratch);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_read_prompts(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 13)) return NULL;
    Style style;
    if (!read_style(of[0], of[1], &style)) return NULL;
    const Layer *layers = address(of[2]);
    float *x = address(of[3]), *scratch = address(of[4]);
    Prompts job = {.firsts = address(of[5]), .turns = address(of[6]), .biases = address(of[7]), .rows = number(of[8]),
                   .slots = number(of[9]), .length = number(of[11]), .far = number(of[12])};
    Count room = number(of[10]);
    if (!between("slots", 1, job.slots, INT32_MAX) || !between("rows", 1, job.rows, job.slots) ||
        !between("length", 1, job.length, room < LONGEST ? room : LONGEST) || !split_by("head", style.head, PANEL) ||
        !is_there("layers", layers) || !is_there("x", x) || !is_there("scratch", scratch) ||
        !is_there("firsts", job.firsts) || (job.biases && !between("far", job.length, job.far, MOST)) ||
        !are_starts(job.firsts, job.rows, job.length))
        return NULL;
    Py_BEGIN_ALLOW_THREADS read_prompts(layers, &style, &job, x, scratch);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_lay_out(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 9)) return NULL;
    const float *from = address(of[0]);
    float *keys = address(of[1]), *values = address(of[2]);
    Count stride = number(of[3]), sentences = number(of[4]), source = number(of[5]), heads = number(of[6]);
    Count head = number(of[7]), room = number(of[8]);
    if (!between("heads", 1, heads, LONGEST) || !between("head", 1, head, LONGEST) ||
        !between("sentences", 1, sentences, MOST) ||
        !between("source", 1, source, MOST) || !between("room", source, room, MOST) ||
        !between("stride", 2 * heads * head, stride, MOST) || !is_there("keys and values", from) ||
        !is_there("keys", keys) || !is_there("values", values))
        return NULL;
    Count size = heads * head * room;
    for (Count one = 0; one < sentences; one++)
        lay_out(from + one * source * stride, stride, source, keys + one * size, values + one * size, heads, head, room);
    Py_RETURN_NONE;
}

static PyObject *py_embed(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 10)) return NULL;
    const int64_t *tokens = address(of[0]);
    const void *table = address(of[1]);
    const float *scales = address(of[2]), *places = address(of[4]);
    float factor = real(of[3]), *x = address(of[6]);
    Count period = number(of[5]), rows = number(of[7]), width = number(of[8]), size = number(of[9]);
    if (!is_size("rows", rows) || !between("width", 1, width, MOST) || !is_size("size", size) ||
        !between("period", 1, period, MOST))
        return NULL;
    if (rows && (!is_there("tokens", tokens) || !is_there("places", places) || !is_there("x", x))) return NULL;
    if (!embed(tokens, table, scales, factor, places, period, x, rows, width, size))
        return PyErr_Format(PyExc_IndexError, "a token is not one of the %lld of the table", size);
    Py_RETURN_NONE;
}

static PyObject *py_norm(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 8)) return NULL;
    Norm norm = {.weight = address(of[0]), .bias = address(of[1])};
    Count rms = number(of[2]), rows = number(of[5]), width = number(of[6]), threads = number(of[7]);
    Style style = {.rms = rms != 0, .eps = real(of[3]), .width = width, .threads = (int)threads};
    float *x = address(of[4]);
    if (!is_size("rows", rows) || !between("width", 1, width, MOST) || !between("threads", 1, threads, THREADS) ||
        !is_there("weight", norm.weight) || (rows && !is_there("x", x)))
        return NULL;
    norm_rows(&norm, &style, x, x, rows);
    Py_RETURN_NONE;
}

static PyObject *py_log_softmax(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 4)) return NULL;
    float *x = address(of[0]);
    Count rows = number(of[1]), size = number(of[2]), most = number(of[3]);
    if (!is_size("rows", rows) || !between("size", 1, size, MOST) || !between("threads", 1, most, THREADS) ||
        (rows && !is_there("x", x)))
        return NULL;
    int threads = threads_for(rows * size, (int)most);
    Py_BEGIN_ALLOW_THREADS EACH_ROW(log_softmax(x + row * size, size));
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_largest(PyObject *self, PyObject *const *of, Py_ssize_t given) {
    if (!taken(given, 9)) return NULL;
    const float *x = address(of[0]), *offsets = address(of[1]);
    Count rows = number(of[2]), beams = number(of[3]), size = number(of[4]), count = number(of[5]), most = number(of[8]);
    float *values = address(of[6]);
    int64_t *places = address(of[7]);
    if (!is_size("rows", rows) || !between("beams", 1, beams, LONGEST) || !between("size", 1, size, MOST) ||
        !between("count", 1, count, beams * size) || !between("threads", 1, most, THREADS) ||
        (rows && (!is_there("x", x) || !is_there("values", values) || !is_there("places", places))))
        return NULL;
    int threads = threads_for(rows * beams * size, (int)most);
    Py_BEGIN_ALLOW_THREADS EACH_ROW(largest(x + row * beams * size, offsets ? offsets + row * beams : NULL, beams, size,
                                            count, values + row * count, places + row * count));
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static View view_of(PyObject *const *of) {
    return (View){.at = address(of[0]), .batch = number(of[1]), .head = number(of[2]), .time = number(of[3])};
}

/* Four views, or eight on the way back, then the rest. */
static PyObject *attention(PyObject *const *of, Py_ssize_t count, int back) {
    if (!taken(count, (back ? 32 : 16) + 17)) return NULL;
    PyObject *const *rest = of + (back ? 32 : 16);
    Attention job = {.query = view_of(of), .key = view_of(of + 4), .value = view_of(of + 8), .y = view_of(of + 12),
                     .additive = address(rest[0]), .additive_batch = number(rest[1]), .additive_query = number(rest[2]),
                     .sums = address(rest[3]), .batch = number(rest[4]), .heads = number(rest[5]),
                     .shared = number(rest[6]), .queries = number(rest[7]), .keys = number(rest[8]),
                     .head = number(rest[9]), .scale = real(rest[10]), .causal = (int)number(rest[11]),
                     .dropped = (uint32_t)number(rest[14]), .factor = real(rest[15])};
    Count seed = number(rest[16]);
    job.seed = (uint32_t)seed, job.second = (uint32_t)(seed >> 32);
    if (back)
        job.d_y = view_of(of + 16), job.d_query = view_of(of + 20), job.d_key = view_of(of + 24),
        job.d_value = view_of(of + 28);
    float *scratch = address(rest[12]);
    Count threads = number(rest[13]);
    if (!between("batch", 1, job.batch, MOST) || !between("shared", 1, job.shared, MOST) ||
        !split_by("heads", job.heads, job.shared) ||
        !between("queries", 1, job.queries, MOST) || !between("keys", 1, job.keys, INT32_MAX - PANEL) ||
        !split_by("head", job.head, PANEL) || !between("threads", 1, threads, THREADS) ||
        (job.causal && !between("keys of causal attention", job.queries, job.keys, job.queries)) ||
        !between("dropped", 0, number(rest[14]), 1 << 16) || !is_there("scratch", scratch) ||
        (back && !is_there("sums", job.sums)))
        return NULL;
    const View *views = &job.query;
    for (int view = 0; view < (back ? 8 : 4); view++)
        if (!is_there("a tensor", views[view].at)) return NULL;
    Py_BEGIN_ALLOW_THREADS attend_all(&job, scratch, back, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_attend(PyObject *self, PyObject *const *of, Py_ssize_t count) { return attention(of, count, 0); }
static PyObject *py_attend_back(PyObject *self, PyObject *const *of, Py_ssize_t count) { return attention(of, count, 1); }

static PyObject *py_rotate(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 17)) return NULL;
    Rotation job = {.x = view_of(of), .y = view_of(of + 4), .cos = address(of[8]), .sin = address(of[9]),
                    .apart = number(of[10]), .batch = number(of[11]), .heads = number(of[12]), .time = number(of[13]),
                    .head = number(of[14]), .back = (int)number(of[15])};
    Count threads = number(of[16]);
    if (!between("batch", 1, job.batch, MOST) || !between("heads", 1, job.heads, MOST) ||
        !between("time", 1, job.time, MOST) || !split_by("head", job.head, PANEL) ||
        !between("threads", 1, threads, THREADS) || !is_there("x", job.x.at) || !is_there("y", job.y.at) ||
        !is_there("cos", job.cos) || !is_there("sin", job.sin))
        return NULL;
    Py_BEGIN_ALLOW_THREADS rotate_all(&job, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* The room that linear maps need, and attention for each thread. */
static PyObject *py_linear_room(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 4)) return NULL;
    Count inputs = number(of[0]), outputs = number(of[1]);
    Count back = number(of[2]), threads = number(of[3]);
    if (!split_by("inputs", inputs, PANEL) || !split_by("outputs", outputs, PANEL) ||
        !between("threads", 1, threads, THREADS))
        return NULL;
    return PyLong_FromLongLong(linear_room(inputs, outputs, back != 0, (int)threads));
}

static PyObject *py_attention_room(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 2)) return NULL;
    Count keys = number(of[0]), head = number(of[1]);
    if (!is_size("keys", keys) || !between("head", 1, head, MOST)) return NULL;
    return PyLong_FromLongLong(attention_room(keys, head));
}

/* A matrix as a product reads it, in panels of its outputs, or of its inputs for what is turned. */
static PyObject *py_pack(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 6)) return NULL;
    const float *weight = address(of[0]);
    Count outputs = number(of[1]), inputs = number(of[2]), turned = number(of[3]), threads = number(of[5]);
    float *to = address(of[4]);
    if (!between("outputs", 1, outputs, MOST) || !split_by("inputs", inputs, PANEL) ||
        !between("threads", 1, threads, THREADS) || !is_there("weight", weight) || !is_there("to", to))
        return NULL;
    Py_BEGIN_ALLOW_THREADS (turned ? pack_inputs : pack_outputs)(weight, outputs, inputs, to, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_linear(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 12)) return NULL;
    Linear job = {.x = address(of[0]), .weight = address(of[1]), .bias = address(of[2]), .y = address(of[3]),
                  .d_y = address(of[4]), .d_x = address(of[5]), .d_w = address(of[6]), .rows = number(of[7]),
                  .inputs = number(of[8]), .outputs = number(of[9])};
    float *scratch = address(of[10]);
    Count threads = number(of[11]);
    if (!between("rows", 1, job.rows, MOST) || !split_by("inputs", job.inputs, PANEL) ||
        !split_by("outputs", job.outputs, PANEL) || !between("threads", 1, threads, THREADS) ||
        !is_there("weight", job.weight) || !is_there("scratch", scratch) || (!job.d_y && !is_there("y", job.y)) ||
        ((!job.d_y || job.d_w) && !is_there("x", job.x)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS (job.d_y ? linear_back : linear)(&job, scratch, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_weight_gradient(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 9)) return NULL;
    WeightGradient job = {.d_y = address(of[0]), .x = address(of[1]), .d_w = address(of[2]), .rows = number(of[3]),
                    .outputs = number(of[4]), .inputs = number(of[5]), .add = (int)number(of[6])};
    float *scratch = address(of[7]);
    Count threads = number(of[8]);
    if (!between("rows", 1, job.rows, MOST) || !between("outputs", 1, job.outputs, MOST) ||
        !split_by("inputs", job.inputs, PANEL) || !between("threads", 1, threads, THREADS) || !is_there("x", job.x) ||
        !is_there("d_y", job.d_y) || !is_there("d_w", job.d_w) || !is_there("scratch", scratch))
        return NULL;
    Py_BEGIN_ALLOW_THREADS weight_gradient(&job, scratch, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_is_invertible(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 3)) return NULL;
    const float *weight = address(of[0]), *bias = address(of[1]);
    Count width = number(of[2]);
    if (!between("width", 1, width, MOST) || !is_there("weight", weight)) return NULL;
    return PyBool_FromLong(is_invertible(weight, bias, width));
}

static PyObject *py_add_norm(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 18)) return NULL;
    Count seed = number(of[16]);
    AddNorm job = {.x = address(of[0]), .v = address(of[1]), .weight = address(of[2]), .bias = address(of[3]),
                 .y = address(of[4]), .factors = address(of[5]), .d_y = address(of[6]), .d_x = address(of[7]),
                 .d_v = address(of[8]), .d_weight = address(of[9]), .rows = number(of[10]), .width = number(of[11]),
                 .rms = (int)number(of[12]), .eps = real(of[13]), .dropped = (uint32_t)number(of[14]),
                 .factor = real(of[15]), .seed = (uint32_t)seed, .second = (uint32_t)(seed >> 32)};
    Count threads = number(of[17]);
    if (!between("rows", 1, job.rows, MOST) || !between("width", 1, job.width, LONGEST) ||
        !split_by("width", job.width, PANEL) || !between("threads", 1, threads, THREADS) ||
        !between("dropped", 0, number(of[14]), 1 << 16) || !is_there("x", job.x) || !is_there("weight", job.weight) ||
        !is_there("y", job.y) || !is_there("factors", job.factors) ||
        (job.d_y && (!is_there("d_x", job.d_x) || !is_there("d_weight", job.d_weight))))
        return NULL;
    Py_BEGIN_ALLOW_THREADS add_norm(&job, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* The sizes of a network and how it works: width, hidden, kind, gated. */
static int read_network(PyObject *const *of, Network *job) {
    job->width = number(of[0]), job->hidden = number(of[1]), job->kind = (int)number(of[2]), job->gated = (int)number(of[3]);
    return split_by("width", job->width, PANEL) && split_by("hidden", job->hidden, PANEL) &&
           between("kind", RELU, number(of[2]), SILU) && between("gated", 0, number(of[3]), 1);
}

static PyObject *py_feed_room(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 6)) return NULL;
    Network job = {0};
    Count back = number(of[4]), threads = number(of[5]);
    if (!read_network(of, &job) || !between("threads", 1, threads, THREADS)) return NULL;
    return PyLong_FromLongLong(feed_room(&job, back != 0, (int)threads));
}

static PyObject *py_feed(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 23)) return NULL;
    Count seed = number(of[20]);
    Network job = {.x = address(of[0]), .first = address(of[1]), .first_bias = address(of[2]), .second = address(of[3]),
                   .second_bias = address(of[4]), .inner = address(of[5]), .y = address(of[6]), .d_y = address(of[7]),
                   .d_inner = address(of[8]), .active = address(of[9]), .d_x = address(of[10]),
                   .d_first = address(of[11]), .d_second = address(of[12]), .rows = number(of[13]),
                   .dropped = (uint32_t)number(of[18]), .factor = real(of[19]), .seed = (uint32_t)seed,
                   .second_seed = (uint32_t)(seed >> 32)};
    float *scratch = address(of[21]);
    Count threads = number(of[22]);
    if (!read_network(of + 14, &job) || !between("rows", 1, job.rows, MOST) ||
        !between("threads", 1, threads, THREADS) || !between("dropped", 0, number(of[18]), 1 << 16) ||
        !is_there("first", job.first) || !is_there("second", job.second) || !is_there("inner", job.inner) ||
        !is_there("scratch", scratch) || !is_there("y", job.d_y ? job.d_inner : job.y) ||
        ((!job.d_y || job.d_first) && !is_there("x", job.x)) ||
        (job.d_second && !is_in_place(&job) && !is_there("active", job.active)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS (job.d_y ? feed_back : feed)(&job, scratch, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_activate(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 6)) return NULL;
    Count kind = number(of[0]), threads = number(of[5]);
    const float *x = address(of[1]), *d_y = address(of[2]);
    float *y = address(of[3]);
    Count size = number(of[4]);
    if (!between("kind", RELU, kind, SILU) || !is_size("size", size) || !between("threads", 1, threads, THREADS) ||
        (size && (!is_there("x", x) || !is_there("y", y))))
        return NULL;
    Py_BEGIN_ALLOW_THREADS activate_all((int)kind, x, d_y, y, size, (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_drop(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 8)) return NULL;
    const float *x = address(of[0]), *v = address(of[1]);
    float *y = address(of[2]), factor = real(of[5]);
    Count size = number(of[3]), dropped = number(of[4]), seed = number(of[6]);
    Count threads = number(of[7]);
    if (!is_size("size", size) || !between("dropped", 0, dropped, 1 << 16) || !between("threads", 1, threads, THREADS) ||
        (size && (!is_there("v", v) || !is_there("y", y))))
        return NULL;
    Py_BEGIN_ALLOW_THREADS drop_all(x, v, y, size, (uint32_t)dropped, factor, (uint32_t)seed, (uint32_t)(seed >> 32),
                                    (int)threads);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_cross_entropy(PyObject *self, PyObject *const *of, Py_ssize_t count) {
    if (!taken(count, 7)) return NULL;
    float *x = address(of[0]), share = real(of[3]);
    const int64_t *targets = address(of[1]);
    double *losses = address(of[2]);
    Count rows = number(of[4]), size = number(of[5]), most = number(of[6]);
    if (!is_size("rows", rows) || !is_size("size", size) || !between("threads", 1, most, THREADS) ||
        (rows && (!is_there("x", x) || !is_there("targets", targets) || !is_there("losses", losses))))
        return NULL;
    for (Count row = 0; row < rows; row++)
        if (targets[row] < 0 || targets[row] >= size)
            return PyErr_Format(PyExc_IndexError, "target %lld is outside the vocabulary of %lld tokens",
                                (Count)targets[row], size);
    int threads = threads_for(rows * size, (int)most);
    Py_BEGIN_ALLOW_THREADS EACH_ROW(losses[row] = cross_entropy(x + row * size, size, targets[row], share));
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(product),     FUNCTION(encode),      FUNCTION(step),          FUNCTION(lay_out),    FUNCTION(embed),
    FUNCTION(norm),        FUNCTION(drop),        FUNCTION(activate),      FUNCTION(attend), FUNCTION(attend_back),
    FUNCTION(linear_room), FUNCTION(linear),      FUNCTION(cross_entropy), FUNCTION(largest), FUNCTION(log_softmax),
    FUNCTION(feed),        FUNCTION(feed_room),   FUNCTION(pack),          FUNCTION(rotate),  FUNCTION(weight_gradient),
    FUNCTION(add_norm),    FUNCTION(is_invertible), FUNCTION(attention_room), FUNCTION(read_prompts),
    {NULL, NULL, 0, NULL},
};

_Static_assert(DEEP % 2 == 0 && DEEP * 127LL * 32767 <= INT32_MAX, "sums of int8 must be exact");

#if defined(AVX512)
#define NAME "_native_avx512"
#define START PyInit__native_avx512
#else
#define NAME "_native"
#define START PyInit__native
#endif

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, NAME, NULL, -1, functions, NULL, NULL, NULL, NULL};

/* Whether this processor has what this was compiled for. */
static int runs_here(void) {
#if defined(AVX512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#elif defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

/* The structs of fields.h: {name: (size, ((field, type, offset), ...))} */
static PyObject *described(void) {
    PyObject *all = PyDict_New();
    for (const Struct *one = structs; all && one->name; one++) {
        PyObject *fields = PyList_New(0), *entry = NULL;
        for (const Field *field = one->fields; fields && field->name; field++) {
            PyObject *row = Py_BuildValue("(ssn)", field->name, field->code, (Py_ssize_t)field->offset);
            if (!row || PyList_Append(fields, row) < 0) Py_CLEAR(fields);
            Py_XDECREF(row);
        }
        if (fields) entry = Py_BuildValue("(nN)", (Py_ssize_t)one->size, fields);
        if (!entry || PyDict_SetItemString(all, one->name, entry) < 0) Py_CLEAR(all);
        Py_XDECREF(entry);
    }
    return all;
}

PyMODINIT_FUNC START(void) {
    if (!runs_here()) {
        PyErr_SetString(PyExc_ImportError, "this processor lacks " PROCESSOR);
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made) PyModule_AddStringConstant(made, "PROCESSOR", PROCESSOR);
    if (made) PyModule_AddIntConstant(made, "VERSION", 9); /* raised when what kernels.py hands over changes */
    PyObject *fields = made ? described() : NULL;
    if (!fields || PyModule_AddObject(made, "STRUCTS", fields) < 0) {
        Py_XDECREF(fields);
        Py_CLEAR(made);
    }
    return made;
}
