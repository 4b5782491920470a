/* What the host asks of a stream or of a small array: to be done, and its bytes. */

#include "layout.h"

/* `stream.host_waits()` */
static int
follow_closely(PyObject *stream)
{
    PyObject *policy = SLOT(stream, Stream__policy), *batch = SLOT(stream, Stream__batch);
    if (Py_TYPE(policy) != is.SubmitPolicy)
        return 0;
    return put_number(policy, SubmitPolicy_first_look, 1) == 0 &&
           policy_opened(policy, batch) == 0;
}

/* Submit what is recorded up to a value, if it is not yet. Takes the lock; 0 if Python must. */
static int
submitted(PyObject *scheduler, PyObject *stream, PyObject *value)
{
    PyObject *lane = SLOT(stream, Stream_lane);
    if (number(value) <= number_in(lane, Lane_submitted))
        return 1;
    if (!lock_taken(scheduler, at.Scheduler_plain))
        return 0;
    int done = stream_submits(stream);
    lock_left(scheduler);
    return done > 0 && number(value) <= number_in(lane, Lane_submitted);
}

/* `scheduler.wait_for({lane: value}, None, …)`, for as long as Python sleeps at a time. Whether the
   value was reached; 0 also if Python must wait. -1 with an exception set. */
int
host_waits(PyObject *scheduler, PyObject *lane, PyObject *value)
{
    PyObject *stream = SLOT(lane, Lane_owner);
    if (Py_TYPE(stream) != is.Stream || SLOT(stream, Stream_scheduler) != scheduler ||
        !follow_closely(stream)) {
        PyErr_Clear();
        return 0;
    }
    if (number(value) <= number_in(lane, Lane_complete))
        return 1;
    /* Other threads may drop all three while this one waits. */
    Py_INCREF(scheduler);
    Py_INCREF(stream);
    Py_INCREF(value);
    int reached = 0;
    if (is_plain_wait(scheduler) && submitted(scheduler, stream, value))
        reached = await_point(scheduler, stream, value, 1);
    Py_DECREF(value);
    Py_DECREF(stream);
    Py_DECREF(scheduler);
    return PyErr_Occurred() ? -1 : reached;
}

/* What a function returns that leaves the work to Python: `answer`, or NULL if an exception is set.
 */
static PyObject *
leave(PyObject *answer)
{
    return PyErr_Occurred() ? NULL : Py_NewRef(answer);
}

/* `stream.synchronize()`; False if Python must do it. */
PyObject *
native_synchronize(PyObject *Py_UNUSED(module), PyObject *stream)
{
    if (Py_TYPE(stream) != is.Stream ||
        !lock_taken(SLOT(stream, Stream_scheduler), at.Scheduler_plain))
        return leave(Py_False);
    PyObject *scheduler = SLOT(stream, Stream_scheduler), *lane = SLOT(stream, Stream_lane);
    PyObject *copies = SLOT(stream, Stream_copies);
    int usual = SLOT(stream, Stream__closed) == Py_False &&
                PyDict_GET_SIZE(SLOT(stream, Stream__waits)) == 0 &&
                number_in(copies, Lane_submitted) <= number_in(copies, Lane_complete) &&
                stream_submits(stream) > 0;
    PyObject *value = Py_NewRef(SLOT(SLOT(stream, Stream__batch), Batch_value));
    lock_left(scheduler);
    int reached = 0;
    if (usual)
        reached = number(value) <= number_in(lane, Lane_complete)
                      ? 1
                      : host_waits(scheduler, lane, value);
    Py_DECREF(value);
    return leave(reached == 1 ? Py_True : Py_False);
}

/* Find what in flight on `entries` conflicts with the host's access to a region: a lane and a value
   on it, borrowed. 0 if there is more than that to find. */
static int
find_conflict(PyObject *scheduler, PyObject *entries, PyObject *region, int write,
              PyObject **lane, PyObject **value)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        PyObject *access = PyList_GET_ITEM(entries, i), *on = SLOT(access, Access_lane);
        PyObject *until = SLOT(access, Access_value);
        if (number(until) <= number_in(on, Lane_complete))
            continue;
        if (SLOT(access, Access_region) != region) {
            int shared = regions_overlap(region, SLOT(access, Access_region));
            if (shared < 0)
                return 0;
            if (!shared)
                continue;
        }
        PyObject *stream = SLOT(on, Lane_owner);
        if (Py_TYPE(stream) != is.Stream || SLOT(stream, Stream_scheduler) != scheduler ||
            stream_polls(stream) <= 0)
            return 0;
        if (number(until) <= number_in(on, Lane_complete)) {
            if (!write && !follow_closely(stream))
                return 0;
            continue;
        }
        if (*lane != NULL && *lane != on)
            return 0;
        if (*lane == NULL || number(until) > number(*value))
            *value = until;
        *lane = on;
    }
    return 1;
}

/* The bytes of an array, borrowed, if the host may access them by a plain copy once no work in
   flight conflicts with that; NULL if Python must find out. Under the lock. */
static PyObject *
bytes_of(PyObject *array, int write)
{
    PyObject *buffer = SLOT(array, Array_buffer), *seen = SLOT(array, Array_seen_by_host);
    PyObject *backing = SLOT(buffer, Buffer_backing), *scheduler = SLOT(buffer, Buffer_scheduler);
    PyObject *history = SLOT(backing, Backing_history);
    PyObject *allowed = write ? SLOT(backing, Backing_host_writes)
                              : SLOT(backing, Backing_host_reads);
    if (!PyTuple_CheckExact(seen) || PyTuple_GET_ITEM(seen, 0) != backing || allowed != Py_True ||
        PyList_GET_SIZE(SLOT(backing, Backing_views)) ||
        PyDict_GET_SIZE(SLOT(backing, Backing_unpublished)) ||
        SLOT(buffer, Buffer_closed) != Py_False || Py_TYPE(history) != is.History ||
        SLOT(history, History_device_only) != Py_False ||
        SLOT(history, History_many) != Py_False ||
        (write && SLOT(buffer, Buffer_guarded) != Py_False) ||
        PyUnicode_CompareWithASCIIString(SLOT(scheduler, Scheduler_transfers), "auto") ||
        number(SLOT(array, Array_nbytes)) > number_of(SLOT(scheduler, Scheduler_sizes),
                                                      named.under_lock))
        return NULL;
    return PyTuple_GET_ITEM(seen, 1);
}

/* `in_flight(…)` for the bytes of an array: *lane and *value, borrowed, are what to wait for, if
   there is anything. 0 if Python must find out. Under the lock. */
static int
find_conflicts(PyObject *array, int write, PyObject **lane, PyObject **value)
{
    PyObject *buffer = SLOT(array, Array_buffer), *region = SLOT(array, Array_region);
    PyObject *history = SLOT(SLOT(buffer, Buffer_backing), Backing_history);
    PyObject *scheduler = SLOT(buffer, Buffer_scheduler);
    *lane = NULL;
    return find_conflict(scheduler, SLOT(history, History_writes), region, write, lane, value) &&
           (!write ||
            find_conflict(scheduler, SLOT(history, History_reads), region, write, lane, value));
}

/* The device of an array, if it can be used here: borrowed. */
static PyObject *
scheduler_of(PyObject *array)
{
    if (Py_TYPE(array) != is.Array || SLOT(array, Array_buffer) == NULL)
        return NULL;
    PyObject *scheduler = SLOT(SLOT(array, Array_buffer), Buffer_scheduler);
    return Py_TYPE(scheduler) == is.Scheduler ? scheduler : NULL;
}

/* `read_now(array)`; None if Python must do it. */
PyObject *
native_read(PyObject *Py_UNUSED(module), PyObject *array)
{
    PyObject *scheduler = scheduler_of(array), *lane, *value;
    int reached = 1;
    for (int turn = 0; turn < 2 && reached == 1 && scheduler != NULL &&
                       lock_taken(scheduler, at.Scheduler_plain);
         turn++) {
        PyObject *seen = bytes_of(array, 0);
        int usual = seen != NULL && find_conflicts(array, 0, &lane, &value);
        if (!usual || lane == NULL) {
            PyObject *copy = usual ? PyObject_CallMethodNoArgs(seen, named.copy) : leave(Py_None);
            if (usual && copy != NULL)
                count_copy(array);
            lock_left(scheduler);
            return copy;
        }
        Py_INCREF(lane);
        Py_INCREF(value);
        lock_left(scheduler);
        reached = host_waits(scheduler, lane, value);
        Py_DECREF(value);
        Py_DECREF(lane);
    }
    return leave(Py_None);
}

/* Whether a NumPy array has the dtype and shape of an array. */
int
array_fits(PyObject *array, PyObject *host)
{
    PyObject *dtype = PyObject_GetAttr(host, named.dtype);
    PyObject *shape = PyObject_GetAttr(host, named.shape);
    int fits = dtype == SLOT(array, Array_dtype) && shape != NULL &&
               PyObject_RichCompareBool(shape, SLOT(array, Array_shape), Py_EQ) == 1;
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return fits;
}

/* Whether the host may write a source, a plain NumPy array, into an array: the same dtype and shape,
   no role that forbids it, and no adopted memory, which the source may be. */
static int
may_write(PyObject *array, PyObject *seen, PyObject *source)
{
    PyObject *buffer = SLOT(array, Array_buffer);
    PyObject *adopted = SLOT(SLOT(buffer, Buffer_scheduler), Scheduler_host_memory);
    if (Py_TYPE(source) != Py_TYPE(seen) || Py_TYPE(adopted) != is.HostMemory ||
        PyDict_GET_SIZE(SLOT(adopted, HostMemory_pieces)))
        return 0;
    PyObject *allowed = PyObject_GetAttr(SLOT(buffer, Buffer_policy), named.host_writes);
    Py_XDECREF(allowed);
    return allowed == Py_True && array_fits(array, source);
}

/* `write(array, source)` where that is a copy now; False if Python must do it. */
PyObject *
native_write(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *scheduler = count == 2 ? scheduler_of(args[0]) : NULL, *lane, *value;
    if (scheduler == NULL || !lock_taken(scheduler, at.Scheduler_plain))
        return leave(Py_False);
    PyObject *seen = bytes_of(args[0], 1);
    int done = seen != NULL && may_write(args[0], seen, args[1]) &&
               find_conflicts(args[0], 1, &lane, &value) && lane == NULL &&
               PyObject_SetItem(seen, Py_Ellipsis, args[1]) == 0;
    if (done)
        count_copy(args[0]);
    lock_left(scheduler);
    return leave(done ? Py_True : Py_False);
}
