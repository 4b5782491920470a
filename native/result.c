/* The result of a launch: a slot for it as `ResultPool.new` takes one, and its value as
   `Result.result` reads it. */

#include "layout.h"

/* Put a slot into a deque of free ones; -1 with an exception set if there is no memory. */
static int
give_back(PyObject *free, PyObject *slot)
{
    PyObject *done = PyObject_CallMethodOneArg(free, named.append, slot);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Take a slot that no launch in flight uses, and zero it: NULL if Python must do it. */
static PyObject *
take(PyObject *pool)
{
    PyObject *free = SLOT(pool, ResultPool_free);
    if (PyObject_Size(free) <= 0)
        return NULL;
    PyObject *slot = PyObject_CallMethodObjArgs(free, named.pop, NULL);
    if (slot == NULL)
        return NULL;
    PyObject *lane = SLOT(slot, ResultMemory__lane), *bytes = SLOT(slot, ResultMemory__bytes);
    if (SLOT(slot, ResultMemory_coherent) != Py_True || !PyMemoryView_Check(bytes) ||
        (lane != Py_None &&
         number(SLOT(slot, ResultMemory__value)) > number_in(lane, Lane_complete))) {
        give_back(free, slot);
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
        give_back(SLOT(pool, ResultPool_free), slot);
        Py_DECREF(slot);
        return PyErr_NoMemory();
    }
    put(result, Result__scheduler, SLOT(pool, ResultPool_scheduler));
    put(result, Result__what, what);
    put(result, Result__finish, Py_None);
    put(result, Result__value, Py_None);
    put(result, Result__points, points);
    put(result, Result__memory, slot);
    Py_DECREF(points);
    Py_DECREF(slot);
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
    put(result, Result__points, points);
    Py_DECREF(points);
    put(slot, ResultMemory__lane, lane);
    put(slot, ResultMemory__value, value);
    return 0;
}

/* `memory.read()`: the value that a complete launch has left in a slot. */
static PyObject *
content(PyObject *slot)
{
    PyObject *parts = SLOT(slot, ResultMemory__content), *pool = SLOT(slot, ResultMemory__pool);
    if (SLOT(slot, ResultMemory_coherent) != Py_True ||
        SLOT(pool, ResultPool_convert) != Py_None || SLOT(pool, ResultPool_one_number) != Py_True)
        return PyObject_CallMethodNoArgs(slot, named.read);
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
    put(result, Result__value, value);
    Py_INCREF(slot);
    put(result, Result__memory, Py_None);
    if (SLOT(SLOT(slot, ResultMemory__pool), ResultPool_closed) == Py_False &&
        give_back(SLOT(slot, ResultMemory_home), slot) < 0)
        Py_CLEAR(value);
    Py_DECREF(slot);
    return value;
}

/* `result.wait()`: whether its launch is done. 0 if Python must wait, -1 with an exception set. */
static int
is_done(PyObject *scheduler, PyObject *result)
{
    PyObject *points = reference_in(result, Result__points), *lane, *value, *none;
    Py_ssize_t position = 0;
    int reached = PyDict_GET_SIZE(points) == 0;
    if (!reached && PyDict_GET_SIZE(points) == 1 &&
        PyDict_Next(points, &position, &lane, &value)) {
        reached = host_waits(scheduler, lane, value);
        if (reached > 0 && (none = PyDict_New()) != NULL) {
            put(result, Result__points, none);
            Py_DECREF(none);
        }
    }
    Py_DECREF(points);
    return PyErr_Occurred() ? -1 : reached;
}

/* `result.result()`; None if Python must do it. */
PyObject *
native_result(PyObject *Py_UNUSED(module), PyObject *result)
{
    if (Py_TYPE(result) != is.Result || SLOT(result, Result__memory) == Py_None)
        Py_RETURN_NONE;
    PyObject *scheduler = SLOT(result, Result__scheduler), *value = NULL;
    if (Py_TYPE(scheduler) == is.Scheduler && is_done(scheduler, result) == 1 &&
        lock_taken(scheduler, at.Scheduler_plain)) {
        value = value_of(result);
        lock_left(scheduler);
    }
    return value == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : value;
}
