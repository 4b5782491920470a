/* The result of a launch: a slot for it as `ResultPool.new` takes one, and its value as
   `Result.result` reads it. */

#include "layout.h"

static PyObject *nothing; /* an empty tuple */

int
result_setup(void)
{
    nothing = PyTuple_New(0);
    return nothing == NULL ? -1 : 0;
}

/* Take a slot that no launch in flight uses, and zero it: NULL if Python must do it. */
static PyObject *
take(PyObject *pool)
{
    PyObject *free = SLOT(pool, ResultPool_free);
    if (PyObject_Size(free) <= 0)
        return NULL;
    PyObject *slot = PyObject_CallMethodNoArgs(free, named.pop);
    if (slot == NULL)
        return NULL;
    PyObject *lane = SLOT(slot, ResultMemory__lane), *bytes = SLOT(slot, ResultMemory__bytes);
    if (SLOT(slot, ResultMemory_coherent) != Py_True || !PyMemoryView_Check(bytes) ||
        (lane != Py_None &&
         number(SLOT(slot, ResultMemory__value)) > number(SLOT(lane, Lane_complete)))) {
        PyObject *arguments[] = {free, slot};
        call_method(named.append, arguments, 2);
        Py_DECREF(slot);
        return NULL;
    }
    Py_buffer *raw = PyMemoryView_GET_BUFFER(bytes);
    memset(raw->buf, 0, (size_t)raw->len);
    return slot;
}

/* `pool.new(what)`; NULL with an exception set if it failed. */
PyObject *
result_new(PyObject *pool, PyObject *what)
{
    PyObject *slot = Py_TYPE(pool) == is.ResultPool ? take(pool) : NULL;
    if (slot == NULL) {
        PyErr_Clear();
        PyObject *arguments[] = {pool, what};
        return PyObject_VectorcallMethod(named.new, arguments, 2, NULL);
    }
    PyObject *points = PyDict_New();
    PyObject *result = points == NULL ? NULL : is.Result->tp_alloc(is.Result, 0);
    if (result == NULL) {
        Py_XDECREF(points);
        PyObject *arguments[] = {SLOT(pool, ResultPool_free), slot};
        call_method(named.append, arguments, 2);
        Py_DECREF(slot);
        return PyErr_NoMemory();
    }
    put(&SLOT(result, Result__scheduler), SLOT(pool, ResultPool_scheduler));
    put(&SLOT(result, Result__what), what);
    put(&SLOT(result, Result__finish), Py_None);
    put(&SLOT(result, Result__value), Py_None);
    SLOT(result, Result__points) = points;
    SLOT(result, Result__memory) = slot;
    return result;
}

/* `result.launched(lane, value)`; -1 with an exception set if it failed. */
int
result_launched(PyObject *result, PyObject *lane, PyObject *value)
{
    PyObject *points = PyDict_New(), *slot = SLOT(result, Result__memory);
    if (points == NULL || PyDict_SetItem(points, lane, value) < 0) {
        Py_XDECREF(points);
        return -1;
    }
    put(&SLOT(result, Result__points), points);
    Py_DECREF(points);
    put(&SLOT(slot, ResultMemory__lane), lane);
    put(&SLOT(slot, ResultMemory__value), value);
    return 0;
}

/* `memory.read()`: the value that a complete launch has left in a slot. */
static PyObject *
content(PyObject *slot)
{
    PyObject *parts = SLOT(slot, ResultMemory__content), *pool = SLOT(slot, ResultMemory__pool);
    if (SLOT(slot, ResultMemory_coherent) != Py_True || PyList_GET_SIZE(parts) != 1 ||
        SLOT(pool, ResultPool_convert) != Py_None ||
        PyObject_Size(PyList_GET_ITEM(parts, 0)) >= 0) { /* of several elements */
        PyErr_Clear();
        return PyObject_CallMethodNoArgs(slot, named.read);
    }
    PyErr_Clear(); /* an array without dimensions has no size */
    return PyObject_GetItem(PyList_GET_ITEM(parts, 0), nothing);
}

/* The part of `result.result()` after the wait, under the lock. */
static PyObject *
value_of(PyObject *result)
{
    PyObject *slot = SLOT(result, Result__memory);
    if (slot == Py_None)
        return Py_NewRef(SLOT(result, Result__value)); /* another thread has read it */
    PyObject *value = content(slot);
    if (value == NULL)
        return NULL;
    put(&SLOT(result, Result__value), value);
    Py_INCREF(slot);
    put(&SLOT(result, Result__memory), Py_None);
    if (SLOT(SLOT(slot, ResultMemory__pool), ResultPool_closed) == Py_False) {
        PyObject *arguments[] = {SLOT(slot, ResultMemory_home), slot};
        if (call_method(named.append, arguments, 2) < 0)
            Py_CLEAR(value);
    }
    Py_DECREF(slot);
    return value;
}

/* `result.result()`; None if Python must do it. */
PyObject *
native_result(PyObject *Py_UNUSED(module), PyObject *result)
{
    PyObject *scheduler, *points, *lane, *value;
    Py_ssize_t position = 0;
    if (Py_TYPE(result) != is.Result || SLOT(result, Result__memory) == Py_None)
        Py_RETURN_NONE;
    scheduler = SLOT(result, Result__scheduler);
    points = SLOT(result, Result__points);
    if (Py_TYPE(scheduler) != is.Scheduler)
        Py_RETURN_NONE;
    if (PyDict_GET_SIZE(points)) {
        if (PyDict_GET_SIZE(points) != 1 || !PyDict_Next(points, &position, &lane, &value))
            Py_RETURN_NONE;
        int reached = host_waits(scheduler, lane, value);
        if (reached < 0)
            return NULL;
        PyObject *none = reached ? PyDict_New() : NULL;
        if (none == NULL) {
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        put(&SLOT(result, Result__points), none);
        Py_DECREF(none);
    }
    if (!lock_taken(scheduler))
        Py_RETURN_NONE;
    PyObject *read = value_of(result);
    lock_left(scheduler);
    return read;
}
