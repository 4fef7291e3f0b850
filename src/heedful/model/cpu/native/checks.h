/* What Python hands over, and whether it is in range: each check raises the error that a caller passes on. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fields.h"

static Count number(PyObject *given) { return PyLong_AsLongLong(given); }
static void *address(PyObject *given) { return (void *)(intptr_t)PyLong_AsLongLong(given); }
static float real(PyObject *given) { return (float)PyFloat_AsDouble(given); }

#define MOST (1LL << 40)    /* of anything */
#define LONGEST (1LL << 17) /* of what has room on the stack: 1.5 MB */
#define THREADS 4096

/* Whether a function was given what it takes; if not, with an error. So do the following. */
static int taken(Py_ssize_t given, Py_ssize_t wanted) {
    if (given != wanted) PyErr_Format(PyExc_TypeError, "%zd arguments, but there are %zd", given, wanted);
    return given == wanted;
}

static int between(const char *name, Count least, Count size, Count most) {
    if (PyErr_Occurred()) return 0;
    if (size < least || size > most)
        PyErr_Format(PyExc_ValueError, "%s is %lld, but must be %lld to %lld", name, size, least, most);
    return size >= least && size <= most;
}

static int is_size(const char *name, Count size) { return between(name, 0, size, MOST); }

/* A size that is at least one, and a multiple of another. */
static int split_by(const char *name, Count size, Count by) {
    if (!between(name, 1, size, MOST)) return 0;
    if (size % by) PyErr_Format(PyExc_ValueError, "%s is %lld, but must be a multiple of %lld", name, size, by);
    return size % by == 0;
}

static int is_there(const char *name, const void *address) {
    if (PyErr_Occurred()) return 0;
    if (!address) PyErr_Format(PyExc_ValueError, "%s is missing", name);
    return address != NULL;
}
